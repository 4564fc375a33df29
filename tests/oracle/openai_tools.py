"""The `openai` package calls a tool and sends back its result.

    python openai_tools.py http://127.0.0.1:PORT ANSWER

The worker's model writes ANSWER, which thinks, says something and calls `add` with {"a": 1, "b": 2}. What the
package's own accumulator makes of the stream is held against the whole answer.
"""

import json
import sys

import openai

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds two numbers.",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
            },
        },
    }
]


def main(base_url, answer):
    client = openai.OpenAI(base_url=f"{base_url}/v1", api_key="not-asked-for", max_retries=0)
    model = client.models.list().data[0].id
    request = {
        "model": model,
        "messages": [{"role": "user", "content": answer}],
        "tools": TOOLS,
        "tool_choice": "auto",
        "max_tokens": 2000,
    }
    whole = client.chat.completions.create(**request).choices[0]
    assert whole.finish_reason == "tool_calls", whole
    assert whole.message.content == "I look.", whole
    assert whole.message.reasoning_content == "Two numbers.", whole
    (call,) = whole.message.tool_calls
    assert call.type == "function" and call.function.name == "add", call
    assert json.loads(call.function.arguments) == {"a": 1, "b": 2}, call

    with client.chat.completions.stream(**request) as stream:
        deltas = [event for event in stream if event.type == "tool_calls.function.arguments.delta"]
        streamed = stream.get_final_completion().choices[0]
    assert len(deltas) > 1, "the arguments came in one piece"
    assert streamed.finish_reason == whole.finish_reason, streamed
    assert streamed.message.content == whole.message.content, streamed
    assert streamed.message.reasoning_content == whole.message.reasoning_content, streamed
    (again,) = streamed.message.tool_calls
    assert again.id.startswith("call_") and again.id != call.id, "another answer has other ids"
    assert again.function.arguments == call.function.arguments, again

    history = [
        *request["messages"],
        whole.message.to_dict(),
        {"role": "tool", "tool_call_id": call.id, "content": "3"},
    ]
    followed = client.chat.completions.create(**request | {"messages": history})
    before = client.chat.completions.create(**request).usage.prompt_tokens
    assert followed.usage.prompt_tokens > before, "the call and its result were not taken in"

    try:
        client.chat.completions.create(**request | {"tool_choice": "any"})
    except openai.BadRequestError as error:
        assert "tool_choice" in str(error), error
    else:
        raise AssertionError("a choice that there is not was accepted")
    print(f"openai {openai.__version__}: a call whole and streamed, its result, a refusal")


if __name__ == "__main__":
    main(*sys.argv[1:])
