"""Runs Schemathesis, which may leave files where it runs, with the arguments behind the first.

The first is the number of characters that the worker takes in all messages of a request. A JSON Schema bounds each
of them, and not all together; nor does it know for which control characters a vocabulary has no token, nor that a text
must be JSON. A refusal for one of these alone is no finding.
"""

import json
import os
import runpy
import sys
import tempfile
import unicodedata

import schemathesis

MAX_CHARS = int(sys.argv.pop(1))


def characters(value):
    """All texts inside, as one."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(map(characters, value))
    if isinstance(value, dict):
        # What a call is given counts as the JSON that it is.
        as_json = {name: shortly(inner) for name, inner in value.items() if name == "input"}
        return characters(list((value | as_json).values()))
    return ""


def shortly(value):
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def is_control(character):
    return unicodedata.category(character).startswith("C")


@schemathesis.hook
def filter_failure(_context, _failure, case, response):
    body = case.body if isinstance(case.body, dict) else {}
    is_too_long = len(characters([body.get("system"), body.get("messages")])) > MAX_CHARS
    is_empty = all(map(is_control, characters(body.get("prompt"))))
    is_excused = (is_too_long and "characters in all" in response.text) or (
        is_empty and "has no tokens" in response.text
    )
    # A text that Schemathesis makes is an object by chance alone, and then the request is another case.
    is_no_json = '"tool_calls"' in json.dumps(body) and "text of a JSON object" in response.text
    return not ((is_excused or is_no_json) and response.status_code == 400)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        runpy.run_module("schemathesis.cli", run_name="__main__")
