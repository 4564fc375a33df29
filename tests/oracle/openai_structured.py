"""The `openai` package parses answers into classes, and `jsonschema` finds every answer valid.

    python openai_structured.py http://127.0.0.1:PORT

The worker's model knows tools. Its answers may be any nonsense of the right form.
"""

import json
import sys
from enum import Enum

import jsonschema
import openai
import pydantic

MESSAGES = [{"role": "user", "content": "Name a river."}]


class Kind(str, Enum):
    river = "river"
    lake = "lake"


class Place(pydantic.BaseModel):
    kind: Kind
    length: int
    deep: bool
    near: "Near | None"


class Near(pydantic.BaseModel):
    side: Kind


# Each ends soon, whatever the model would like to say.
SCHEMAS = [
    {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False},
    {"type": "array", "items": {"type": "integer", "minimum": -5, "maximum": 99}, "minItems": 2, "maxItems": 4},
    {"enum": [1, "a", None, {"b": [True]}]},
    {"const": {"a": "b"}},
    {"anyOf": [{"type": "string", "maxLength": 5}, {"type": "null"}]},
    {"type": "string", "pattern": "^[a-f]{2}-[0-9]{3}$"},
    {"type": "string", "format": "date"},
    {"type": "number", "multipleOf": 0.5, "minimum": 0, "maximum": 10},
    {
        "type": "object",
        "properties": {"next": {"anyOf": [{"type": "null"}, {"enum": ["x"]}]}, "é\"": {"enum": ["\n"]}},
        "required": ["next", "é\""],
        "additionalProperties": False,
    },
]


def main(base_url):
    client = openai.OpenAI(base_url=f"{base_url}/v1", api_key="not-asked-for", max_retries=0)
    model = client.models.list().data[0].id
    request = {"model": model, "messages": MESSAGES, "max_tokens": 300, "temperature": 1.0}

    for seed in range(3):
        parsed = client.chat.completions.parse(**request, response_format=Place, seed=seed).choices[0]
        assert parsed.finish_reason == "stop", parsed
        assert isinstance(parsed.message.parsed, Place), parsed

    with client.chat.completions.stream(**request, response_format=Place, seed=7) as stream:
        final = stream.get_final_completion().choices[0]
    assert isinstance(final.message.parsed, Place), final

    for schema in SCHEMAS:
        for seed in range(3):
            form = {"type": "json_schema", "json_schema": {"name": "it", "strict": True, "schema": schema}}
            answer = client.chat.completions.create(**request, response_format=form, seed=seed).choices[0]
            assert answer.finish_reason == "stop", (schema, answer)
            jsonschema.validate(json.loads(answer.message.content), schema)

    tool = openai.pydantic_function_tool(Place, name="place")
    assert tool["function"]["strict"] is True, tool
    called = client.chat.completions.parse(**request, tools=[tool], tool_choice="required", parallel_tool_calls=False)
    (call,) = called.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Place), call

    bad = {"type": "json_schema", "json_schema": {"name": "it", "schema": {"type": "object", "unevaluatedItems": {}}}}
    try:
        client.chat.completions.create(**request, response_format=bad)
    except openai.BadRequestError as error:
        assert error.param == "response_format" and "unevaluatedItems" in str(error), error
    else:
        raise AssertionError("a schema that nothing holds the model to was accepted")
    print(f"openai {openai.__version__}: parsed whole and streamed, {len(SCHEMAS)} schemas, a strict tool, a refusal")


if __name__ == "__main__":
    main(*sys.argv[1:])
