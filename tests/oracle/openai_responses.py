"""The `openai` package speaks /v1/responses: whole, streamed, with a tool and its result.

    python openai_responses.py http://127.0.0.1:PORT ANSWER

The worker's model writes ANSWER, which thinks, says something and calls `add` with {"a": 1, "b": 2}. Every event and every
whole response is checked against the package's own types, strictly, and what its accumulator makes of the stream is held
against the whole answer.
"""

import json
import sys

import openai
from openai.types.responses import InputTokenCountResponse, Response, ResponseStreamEvent
from pydantic import TypeAdapter

TOOLS = [
    {"type": "web_search"},
    {
        "type": "function",
        "name": "add",
        "description": "Adds two numbers.",
        "strict": False,
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
        },
    },
]

EVENT = TypeAdapter(ResponseStreamEvent)


def strictly(response):
    """The response as its type has it. `construct` would take anything."""
    return Response.model_validate(response.to_dict(), strict=False)


def said(response):
    """All but what is of one answer alone."""
    told = response.to_dict(exclude_none=True)
    kept = [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in told["output"]]
    return kept, told["status"], told["usage"], told.get("incomplete_details")


def events_of(client, request):
    events = []
    with client.responses.create(**request, stream=True) as stream:
        for event in stream:
            EVENT.validate_python(event.to_dict())
            assert event.sequence_number == len(events), event
            events.append(event)
    return events


def check_refusals(client, request):
    for extra, field in [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"tool_choice": {"type": "function", "name": "later"}}, "tool_choice"),
        ({"background": True}, "background"),
    ]:
        try:
            client.responses.create(**request | extra)
        except openai.BadRequestError as error:
            assert error.param == field, error
        else:
            raise AssertionError(f"{field} was accepted")


def main(base_url, answer):
    client = openai.OpenAI(base_url=f"{base_url}/v1", api_key="not-asked-for", max_retries=0)
    request = {
        "model": client.models.list().data[0].id,
        "input": answer,
        "tools": TOOLS,
        "tool_choice": "auto",
        "max_output_tokens": 2000,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "metadata": {"a": "b"},
    }
    whole = strictly(client.responses.create(**request))
    assert whole.status == "completed" and whole.output_text == "I look.", whole
    assert whole.metadata == {"a": "b"} and whole.error is None, whole
    thought, _, call = whole.output
    assert thought.type == "reasoning" and thought.content[0].text == "Two numbers.", whole
    assert call.type == "function_call" and call.name == "add", whole
    assert json.loads(call.arguments) == {"a": 1, "b": 2}, whole

    events = events_of(client, request)
    assert events[-1].type == "response.completed", events[-1]
    assert said(events[-1].response) == said(whole)
    with client.responses.stream(**request) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_response()
    assert "response.function_call_arguments.delta" in kinds, kinds
    assert said(strictly(final))[0] == said(whole)[0], final

    counted = {name: request[name] for name in ("model", "input", "tools", "tool_choice")}
    counted = client.responses.input_tokens.count(**counted)
    counted = InputTokenCountResponse.model_validate(counted.to_dict())
    assert counted.input_tokens == whole.usage.input_tokens, counted

    cut = events_of(client, request | {"max_output_tokens": 30})[-1]
    assert cut.type == "response.incomplete", cut
    assert strictly(cut.response).incomplete_details.reason == "max_output_tokens", cut

    before = whole.usage.input_tokens
    history = [
        {"role": "user", "content": "1 + 2?"},
        *[item.to_dict() for item in whole.output],
        {"type": "function_call_output", "call_id": call.call_id, "output": "3"},
    ]
    followed = strictly(client.responses.create(**request | {"input": history}))
    assert followed.usage.input_tokens != before, "the call and its result were not taken in"

    check_refusals(client, request)
    print(f"openai {openai.__version__}: responses whole and streamed, a call and its result, a count, refusals")


if __name__ == "__main__":
    main(*sys.argv[1:])
