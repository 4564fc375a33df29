"""Chat templates by Python's own Jinja, as Hugging Face's transformers run them.

    python chat_templates.py CASES.json

Each case has a template, the body of a request as text, and the prompt that the worker makes of it. Messages reach the
template as transformers' users write them: the arguments of calls as values, an absent text as None beside calls and as an
empty one elsewhere, and where None fails. For gpt-oss's template thoughts are `thinking`, and beside calls there is no text.
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


def strftime_now(form):
    return datetime.datetime.now(datetime.timezone.utc).strftime(form)


def message_of(given, has_thinking):
    message = dict(given)
    if has_thinking and (thoughts := message.get("reasoning_content")):
        message["thinking"] = thoughts
        if message.get("tool_calls"):
            message["content"] = None
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
    has_thinking = "message.thinking" in template
    messages = [message_of(message, has_thinking) for message in body["messages"]]
    try:
        return rendered(template, body, messages)
    except TypeError:
        return rendered(template, body, [message | {"content": message["content"] or ""} for message in messages])


def rendered(template, body, messages):
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = tojson
    environment.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
    effort = body.get("reasoning_effort")
    return environment.from_string(template).render(
        messages=messages,
        tools=body.get("tools") or None,
        documents=None,
        add_generation_prompt=True,
        bos_token="<s>",
        eos_token="</s>",
        **({"reasoning_effort": effort} if effort else {}),
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
