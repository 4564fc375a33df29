"""Greedy tokens of a running worker with `logit_bias`, against llama.cpp's sampler for it.

    python logit_bias.py write MODEL PLAIN     the model's weights as plain F32 numbers
    python logit_bias.py compare PLAIN URL     a worker that serves PLAIN answers at URL

llama.cpp is given the worker's tokens, and says at each step which token it would take.
"""

import json
import random
import sys
import urllib.request

import numpy as np

import dequantized
import llama_cpp
from logprobs import ENDINGS, SUBJECTS, piece

TOKENS = 6
# With weights and llama.cpp's cache as F32, what is left is our F16 keys and values.
CLEAR_MARGIN = 0.05


def main(task, first, second):
    if task == "write":
        dequantized.write(first, second)
    else:
        compare(first, second)


def compare(path, url):
    random.seed(15)
    prompts = [random.choice(SUBJECTS) + ending for ending in ENDINGS for _ in range(4)]
    counted, moved, close_calls = 0, 0, 0
    # Other tests run beside this one, and threads of llama.cpp that wait for each other would wait for those.
    with llama_cpp.Model(path, threads=1, exact_kv=True) as model:
        ids = {model.piece(token): token for token in reversed(range(model.n_vocab))}
        for prompt in prompts:
            model.reset()
            row = model.run(model.tokenize(prompt, whole=True))
            biases = some_biases(row)
            told = [ids[piece(name)] for name in ask(url, prompt, biases)]
            rows = [row, *model.run(told[:-1], all_positions=True)] if len(told) > 1 else [row]
            for row, token in zip(rows, told, strict=True):
                biased = llama_cpp.biased(row, biases)
                expected = int(biased.argmax())
                moved += expected != row.argmax()
                if token != expected:
                    margin = biased[expected] - biased[token]
                    close_calls += margin <= CLEAR_MARGIN
                    assert margin <= CLEAR_MARGIN, f"{prompt!r}: {token} instead of {expected} by {margin}"
                counted += 1
    print(f"{len(prompts)} prompts, {counted} tokens, {moved} of them others than the largest logit's, "
          f"{close_calls} close calls")
    assert counted >= len(prompts) * TOKENS / 2, "too few were compared"
    assert moved >= len(prompts), "the biases moved too little"


def some_biases(row):
    """The likeliest token of the first step is forbidden, some that are likely are moved, and so are some others."""
    likely = [int(token) for token in np.argsort(row)[::-1][:20]]
    biases = {likely[0]: -100.0}
    biases |= {token: random.choice([-2.5, -1.0, 1.5, 3.0]) for token in likely[1:10]}
    biases |= {random.randrange(len(row)): random.choice([-7.0, 4.0]) for _ in range(20)}
    return biases


def ask(url, prompt, biases):
    body = {"prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "logprobs": 0, "logit_bias": biases}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["logprobs"]["tokens"]


if __name__ == "__main__":
    main(*sys.argv[1:])
