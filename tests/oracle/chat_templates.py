"""Chat templates by Python's own Jinja, as Hugging Face's transformers run them.

    python chat_templates.py CASES.json

Each case has a template, the body of a request as text, and the prompt that the worker makes of it. Messages reach the
template as transformers' users write them: the arguments of calls as values, an absent text as None beside calls and as an empty one elsewhere.
"""

import datetime
import json
import sys

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment


def tojson(value, indent=None):
    return json.dumps(value, ensure_ascii=False, indent=indent)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def strftime_now(format):
    return datetime.datetime.now(datetime.timezone.utc).strftime(format)


def message_of(given):
    message = dict(given)
    message["content"] = message.get("content")
    if message["content"] is None and not message.get("tool_calls"):
        message["content"] = ""
    if calls := message.get("tool_calls"):
        message["tool_calls"] = [
            call | {"function": call["function"] | {"arguments": json.loads(call["function"]["arguments"])}}
            for call in calls
        ]
    return message


def render(template, body):
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment.from_string(template).render(
        messages=[message_of(message) for message in body["messages"]],
        tools=body.get("tools") or None,
        documents=None,
        add_generation_prompt=True,
        bos_token="<s>",
        eos_token="</s>",
    )


def main(path):
    with open(path, encoding="utf-8") as file:
        cases = json.load(file)
    different = 0
    for case in cases:
        expected = render(case["template"], json.loads(case["body"]))
        if expected != case["prompt"]:
            different += 1
            print(f"{case['name']}\n  expected {expected!r}\n  rendered {case['prompt']!r}")
    print(f"jinja2 {jinja2.__version__}: {len(cases)} prompts, {different} different")
    return different > 0 or not cases


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
