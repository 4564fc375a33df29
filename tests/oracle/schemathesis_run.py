"""Runs Schemathesis, which may leave files where it runs, with the arguments behind the first.

The first is the number of characters that the worker takes in all messages of a request. A JSON Schema bounds each
of them, and not all together; nor does it know for which control characters a vocabulary has no token, nor that a text
must be JSON, nor which message is the last, nor how wide a number in an object of any kind may be. A refusal for one of these alone is no finding.
"""

import json
import os
import runpy
import sys
import tempfile
import unicodedata

import schemathesis

MAX_CHARS = int(sys.argv.pop(1))


# Fields by which an answer is held to something, and what a refusal of it says.
HOLDING = ("format", "response_format", "json_schema", "grammar", "structured_outputs", "tool_choice", "tools", "parallel_tool_calls")
NOT_HELD = (
    "cannot be followed",
    "cannot be given together with",
    "must have type: object",
    "none of the tools",
    "needs tools",
)


def characters(value):
    """All texts inside, as one."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(map(characters, value))
    if isinstance(value, dict):
        # What a call is given counts as the JSON that it is.
        of_calls = [name for name in ("input", "arguments") if isinstance(value.get(name), (dict, list))]
        as_json = {name: shortly(value[name]) for name in of_calls}
        return characters(list((value | as_json).values()))
    return ""


def shortly(value):
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def has_wide_number(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return any(map(has_wide_number, value))
    return isinstance(value, int) and not -(2**63) <= value < 2**64


def is_control(character):
    return unicodedata.category(character).startswith("C")


@schemathesis.hook
def filter_failure(_context, _failure, case, response):
    body = case.body if isinstance(case.body, dict) else {}
    said = [body.get(name) for name in ("messages", "system", "prompt", "instructions", "input")]
    is_too_long = len(characters(said)) > MAX_CHARS
    tools = body.get("tools")
    tools = tools if isinstance(tools, list) else []
    # As a template is given them, with two words around each.
    is_too_long |= len(shortly(tools)) + 40 * len(tools) > MAX_CHARS
    is_empty = all(map(is_control, characters(body.get("prompt"))))
    is_excused = (is_too_long and "characters in all" in response.text) or (
        is_empty and "has no tokens" in response.text
    )
    # A text that Schemathesis makes is an object by chance alone, and then the request is another case.
    has_call = any(name in json.dumps(body) for name in ('"tool_calls"', '"function_call"'))
    is_no_json = has_call and "text of a JSON object" in response.text
    # What an answer can be begun with depends on who speaks last, and a schema has no word for the last of a list.
    # A system's message without a text is none.
    messages = body.get("messages")
    messages = messages if isinstance(messages, list) else []
    roles = [it.get("role") for it in messages if isinstance(it, dict)]
    speakers = [role for role in roles if role != "system"]
    is_prefix = any(it.get("prefix") is True for it in messages if isinstance(it, dict))
    begins = speakers[-1:] == ["assistant"] or is_prefix or body.get("continue_final_message") is True
    begins |= body.get("add_generation_prompt") is False
    is_begun = begins and any(word in response.text for word in ("continued", "continue_final_message"))
    # Two fields that mean the same may say the same.
    is_begun |= "says something else" in response.text
    # Inside of an object of any kind.
    is_wide = has_wide_number(body) and "no integer beyond 64 bits" in response.text
    is_not_held = any(map(body.get, HOLDING)) and any(words in response.text for words in NOT_HELD)
    # How one number compares with another, and whether a grammar goes on with these tokens alone.
    is_ruled = bool(body.get("min_tokens")) and "must be at most max_tokens" in response.text
    is_ruled |= bool(body.get("allowed_token_ids")) and "none of allowed_token_ids" in response.text
    differ = body.get("max_tokens") != body.get("max_completion_tokens")
    is_ruled |= differ and "contradicts max_completion_tokens" in response.text
    is_excused = is_excused or is_no_json or is_begun or is_wide or is_not_held or is_ruled
    return not (is_excused and response.status_code == 400)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        runpy.run_module("schemathesis.cli", run_name="__main__")
