"""Log probabilities of a running worker against llama.cpp's logits.

    python logprobs.py write MODEL PLAIN     the model's weights as plain F32 numbers
    python logprobs.py compare PLAIN URL     a worker that serves PLAIN answers at URL

With weights as F32, and llama.cpp's keys and values as F32 too, llama.cpp rounds nothing, and what is
left is what our F16 keys and values cost. Each answer is greedy; llama.cpp is given its tokens one by
one, and its log-softmax is compared at the drawn token and at each of the most likely ones.
"""

import json
import sys
import urllib.request

import numpy as np

import dequantized
import llama_cpp

TOP = 20
TOKENS = 8
MEAN_TOLERANCE = 1e-3

SUBJECTS = ["The river", "A child", "My computer", "The old king", "In winter, the sun",
            "Water", "The 3rd law", "def main():"]
ENDINGS = [" is", " was never", ", which everybody knows,", " of 1984", " \u00e9tait une"]


def main(task, first, second):
    if task == "write":
        dequantized.write(first, second)
    else:
        compare(first, second)


def compare(path, url):
    prompts = [subject + ending for subject in SUBJECTS for ending in ENDINGS]
    differences = []
    with llama_cpp.Model(path, exact_kv=True) as model:
        ids = {model.piece(token): token for token in reversed(range(model.n_vocab))}
        for prompt in prompts:
            differences += of_answer(model, ids, prompt, ask(url, prompt))
    mean, largest = np.mean(differences), np.max(differences)
    print(f"{len(prompts)} prompts, {len(differences)} log probabilities: "
          f"mean difference {mean:.2e}, largest {largest:.2e}")
    assert len(prompts) == 40
    assert len(differences) >= 40 * TOP, "too few were compared"
    assert mean <= MEAN_TOLERANCE, f"mean {mean}"


def ask(url, prompt):
    body = {"prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "logprobs": TOP}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["logprobs"]


def of_answer(model, ids, prompt, answer):
    model.reset()
    row = model.run(model.tokenize(prompt, whole=True))
    for name, logprob, top in zip(answer["tokens"], answer["token_logprobs"], answer["top_logprobs"]):
        expected = log_softmax(row)
        token = ids[piece(name)]
        yield abs(logprob - expected[token])
        assert len(top) in (TOP, TOP + 1), top
        for name, logprob in top.items():
            yield abs(logprob - expected[ids[piece(name)]])
        # All that is left out is less likely, but for what rounding may turn.
        likely = np.sort(expected)[::-1]
        assert abs(min(sorted(top.values())[-TOP:]) - likely[TOP - 1]) < 0.01
        row = model.run([token])


def piece(name):
    if name.startswith("bytes:"):
        return bytes.fromhex(name.removeprefix("bytes:").replace("\\x", ""))
    return name.encode()


def log_softmax(row):
    row = row.astype(np.float64)
    row -= row.max()
    return row - np.log(np.exp(row).sum())


if __name__ == "__main__":
    main(*sys.argv[1:])
