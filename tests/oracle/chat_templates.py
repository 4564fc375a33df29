"""Prompts of conversations by Hugging Face's transformers, beside those of the worker.

    python chat_templates.py CASES.json

Each case has a template, the texts of the tokens that begin and end a sequence, the body of a request as text, and what the
worker makes of it: a prompt, or the words in which the template refuses it. It may have settings of the template. A tokenizer of
transformers with that template must make the same of the same messages (`apply_chat_template`). Templates may ask for the date,
which the worker has in UTC.

What the worker does before the template is done here, too (`message_of`).
"""

import json
import os
import sys
import time

os.environ |= {"TZ": "UTC", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1"}
time.tzset()

import jinja2
import tokenizers
import transformers
from transformers.utils.chat_template_utils import render_jinja_template


def message_of(given, has_thinking, has_values):
    """A message as it reaches the template. The arguments of calls are values, as transformers' users write them, or JSON for
    templates that fail on values. gpt-oss's template refuses thoughts and a text beside calls, and is given no text."""
    message = dict(given)
    calls = message.get("tool_calls")
    if calls:
        given_as = (lambda it: it) if has_values else (lambda it: json.dumps(it, ensure_ascii=False))
        message["tool_calls"] = [
            call | {"function": call["function"] | {"arguments": given_as(json.loads(call["function"]["arguments"]))}}
            for call in calls
        ]
    if calls and has_thinking and message.get("reasoning_content"):
        message["content"] = ""
    return message


def settings_of(body):
    effort = body.get("reasoning_effort")
    settings = {"reasoning_effort": effort} if effort else {}
    return settings | ({"enable_thinking": False} if effort == "none" else {})


def made_by_transformers(case):
    """What the worker should have made, under the same name."""
    try:
        return made_of(case, has_values=True)
    except TypeError:
        # DeepSeek's templates put arguments behind other text.
        return made_of(case, has_values=False)


def made_of(case, has_values):
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(tokenizers.models.BPE()),
        bos_token=case["begin"],
        eos_token=case["end"],
        chat_template=case["template"],
    )
    body = json.loads(case["body"])
    has_thinking = "message.thinking" in case["template"]
    messages = [message_of(message, has_thinking, has_values) for message in body["messages"]]
    tools = body["tools"] or None
    settings = {"add_generation_prompt": True} | settings_of(body) | case.get("settings", {})
    try:
        return {"prompt": tokenizer.apply_chat_template(messages, tools, tokenize=False, **settings)}
    except jinja2.UndefinedError:
        # It takes away what is None. DeepSeek's templates ask whether a content is, and fail where there is none: its own
        # renderer gives them what is written here.
        settings |= tokenizer.special_tokens_map
        [prompt], _ = render_jinja_template([messages], tools, chat_template=case["template"], **settings)
        return {"prompt": prompt}
    except jinja2.TemplateError as error:
        # What a template raises has no class of its own.
        if type(error) is not jinja2.TemplateError:
            raise
        return {"refusal": error.message}


def main(path):
    with open(path, encoding="utf-8") as file:
        cases = json.load(file)
    different = 0
    for case in cases:
        expected = made_by_transformers(case)
        made = {name: case[name] for name in ("prompt", "refusal") if name in case}
        if expected != made:
            different += 1
            print(f"{case['name']}\n  expected {expected!r}\n  made     {made!r}")
    refusals = sum("refusal" in case for case in cases)
    print(f"transformers {transformers.__version__}: {len(cases)} bodies, {refusals} refused, {different} different")
    return different > 0 or refusals == len(cases)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
