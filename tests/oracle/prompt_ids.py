"""Ids of prompts equal llama.cpp's for the same text.

    python prompt_ids.py CASES.json

A case has a name, the path of a model, a prompt as a chat template made it, and its ids. Where the model wants a BOS in
front and the template has written one, llama.cpp's server leaves out the second (`common_chat_templates_apply`).
"""

import itertools
import json
import sys

import llama_cpp


def main(path):
    with open(path, encoding="utf-8") as file:
        cases = json.load(file)
    different = 0
    for model, group in itertools.groupby(cases, key=lambda case: case["path"]):
        with llama_cpp.Model(model, vocab_only=True) as reference:
            for case in group:
                expected = reference.tokenize(case["prompt"], whole=True)
                if len(expected) > 1 and expected[0] == expected[1]:
                    expected = expected[1:]
                if expected != case["ids"]:
                    different += 1
                    print(f"{case['name']}: {case['prompt']!r}\n  ours      {case['ids']}\n  llama.cpp {expected}")
    print(f"{len(cases)} prompts, {different} with other ids than llama.cpp's")
    return different > 0 or not cases


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
