"""The `anthropic` package calls a tool and sends back its result, and Claude Code's request is served.

    python anthropic_client.py http://127.0.0.1:PORT ANSWER

The worker's model writes ANSWER, which thinks, says something and calls `add` with {"a": 1, "b": 2}. What the
package's own accumulator makes of the stream is held against the whole answer.
"""

import sys

import anthropic

TOOLS = [
    {
        "name": "add",
        "description": "Adds two numbers.",
        "input_schema": {
            "type": "object",
            "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
        },
    }
]


def main(base_url, answer):
    client = anthropic.Anthropic(base_url=base_url, api_key="not-asked-for", max_retries=0)
    model = client.models.list().data[0].id
    request = {
        "model": model,
        "max_tokens": 2000,
        "messages": [{"role": "user", "content": answer}],
        "tools": TOOLS,
        "tool_choice": {"type": "auto"},
    }
    whole = client.messages.create(**request)
    check_whole(whole)
    check_stream(client, request, whole)

    counted = {name: request[name] for name in request if name != "max_tokens"}
    count = client.messages.count_tokens(**counted)
    assert count.input_tokens == prompt_tokens(whole), (count, whole.usage)

    call = whole.content[-1]
    history = [
        *request["messages"],
        {"role": "assistant", "content": whole.content},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "3"}],
        },
    ]
    followed = client.messages.create(**request | {"messages": history})
    grown = prompt_tokens(followed) - prompt_tokens(whole)
    assert grown > 0, "the call and its result were not taken in"

    claude_code(client, request)
    refusals(client, request)
    print(f"anthropic {anthropic.__version__}: a call whole and streamed, its result, a count, Claude Code, refusals")


def prompt_tokens(message):
    return message.usage.input_tokens + message.usage.cache_read_input_tokens


def check_whole(whole):
    assert whole.stop_reason == "tool_use" and whole.stop_sequence is None, whole
    thought, said, call = whole.content
    assert (thought.type, thought.thinking) == ("thinking", "Two numbers."), thought
    assert (said.type, said.text) == ("text", "I look."), said
    assert (call.type, call.name, call.input) == ("tool_use", "add", {"a": 1, "b": 2}), call
    assert whole._request_id, "no request-id"


def check_stream(client, request, whole):
    with client.messages.stream(**request) as stream:
        events = list(stream)
        streamed = stream.get_final_message()
    assert sum(event.type == "input_json" for event in events) > 1, "the input came in one piece"
    assert any(event.type == "signature" for event in events), "no thought is signed"
    assert streamed.stop_reason == whole.stop_reason, streamed
    assert prompt_tokens(streamed) == prompt_tokens(whole), streamed.usage
    assert streamed.usage.output_tokens == whole.usage.output_tokens, streamed.usage
    assert [nameless(block) for block in streamed.content] == [nameless(block) for block in whole.content]
    assert streamed.content[-1].id != whole.content[-1].id, "another answer has other ids"


def nameless(block):
    return {name: value for name, value in block.to_dict().items() if name != "id"}


def claude_code(client, request):
    """What Claude Code sends, in short; the package adds `?beta=true` and the header."""
    stream = client.beta.messages.create(
        **request | {"max_tokens": 32000},
        stream=True,
        betas=["claude-code-20250219", "interleaved-thinking-2025-05-14"],
        system=[
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=a1b2c;"},
            {"type": "text", "text": "Be short.", "cache_control": {"type": "ephemeral"}},
        ],
        metadata={"user_id": "user_1_account__session_2"},
        thinking={"type": "enabled", "budget_tokens": 31999},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        output_config={"effort": "high"},
    )
    types = [event.type for event in stream]
    assert types[0] == "message_start" and types[-1] == "message_stop", types


def refusals(client, request):
    def refused(kind, word, **changed):
        try:
            client.messages.create(**request | changed)
        except kind as error:
            assert word in str(error), error
        else:
            raise AssertionError(f"{word} was accepted and ignored")

    refused(anthropic.BadRequestError, "tool_choice", tool_choice={"type": "tool"})
    web = {"type": "web_search_20250305", "name": "web_search"}
    refused(anthropic.BadRequestError, "tools[0].type", tools=[web])
    picture = {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/a.png"}}
    refused(anthropic.BadRequestError, "messages[0].content[0].type", messages=[{"role": "user", "content": [picture]}])
    other = client.messages.create(**request | {"model": "claude-opus-9"})
    assert other.model == request["model"], other.model


if __name__ == "__main__":
    main(*sys.argv[1:])
