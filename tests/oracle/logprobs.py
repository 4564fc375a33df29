"""Log probabilities of a running worker against llama.cpp's logits.

    python logprobs.py write MODEL PLAIN     the model's weights as plain F32 numbers
    python logprobs.py compare PLAIN URL     a worker that serves PLAIN answers at URL

With weights as F32, and llama.cpp's keys and values as F32 too, llama.cpp rounds nothing, and what is
left is what our F16 keys and values cost. Each answer is greedy and begins with its prompt; llama.cpp is given
the tokens of both, and its log-softmax is compared at each token, and at each of the most likely ones.
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
    differences, of_prompts = [], []
    # Other tests run beside this one, and threads of llama.cpp that wait for each other would wait for those.
    with llama_cpp.Model(path, threads=1, exact_kv=True) as model:
        ids = {model.piece(token): token for token in reversed(range(model.n_vocab))}
        for prompt in prompts:
            for of_prompt, difference in of_answer(model, ids, prompt, ask(url, prompt)):
                (of_prompts if of_prompt else differences).append(difference)
    assert len(prompts) == 40
    for name, found in [("answers", differences), ("prompts", of_prompts)]:
        mean, largest = np.mean(found), np.max(found)
        print(f"{len(prompts)} {name}, {len(found)} log probabilities: "
              f"mean difference {mean:.2e}, largest {largest:.2e}")
        assert len(found) >= 40 * TOP, "too few were compared"
        assert mean <= MEAN_TOLERANCE, f"mean {mean}"


def ask(url, prompt):
    body = {"prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "logprobs": TOP, "echo": True}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["logprobs"]


def of_answer(model, ids, prompt, answer):
    given = model.tokenize(prompt, whole=True)
    names, logprobs, tops = (answer[it] for it in ("tokens", "token_logprobs", "top_logprobs"))
    assert [piece(name) for name in names[: len(given)]] == [model.piece(token) for token in given]
    assert logprobs[0] is None and tops[0] is None, "nothing comes before the first"
    told = given + [ids[piece(name)] for name in names[len(given) :]]
    model.reset()
    rows = model.run(told[:-1], all_positions=True)
    for at, (row, logprob, top) in enumerate(zip(rows, logprobs[1:], tops[1:], strict=True), 1):
        expected = log_softmax(row)
        of_prompt = at < len(given)
        yield of_prompt, abs(logprob - expected[told[at]])
        assert len(top) in (TOP, TOP + 1), top
        for name, logprob in top.items():
            yield of_prompt, abs(logprob - expected[ids[piece(name)]])
        # All that is left out is less likely, but for what rounding may turn.
        likely = np.sort(expected)[::-1]
        assert abs(min(sorted(top.values())[-TOP:]) - likely[TOP - 1]) < 0.01


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
