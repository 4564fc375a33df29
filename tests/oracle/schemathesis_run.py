"""Runs Schemathesis, which may leave files where it runs, with the arguments behind the first.

The first is the number of characters that the worker takes in all messages of a request. A JSON Schema bounds each
of them, and not all together: a refusal for that alone is no finding.
"""

import os
import runpy
import sys
import tempfile

import schemathesis

MAX_CHARS = int(sys.argv.pop(1))


def characters(value):
    """Of all texts inside."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, list):
        return sum(map(characters, value))
    if isinstance(value, dict):
        return sum(map(characters, value.values()))
    return 0


@schemathesis.hook
def filter_failure(_context, _failure, case, response):
    body = case.body if isinstance(case.body, dict) else {}
    is_too_long = characters(body.get("messages")) > MAX_CHARS
    is_refused_for_it = response.status_code == 400 and "characters in all" in response.text
    return not (is_too_long and is_refused_for_it)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        runpy.run_module("schemathesis.cli", run_name="__main__")
