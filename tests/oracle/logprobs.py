"""Log probabilities of a running worker against llama.cpp's logits.

    python logprobs.py write MODEL PLAIN     the model's weights as plain F32 numbers
    python logprobs.py compare PLAIN URL     a worker that serves PLAIN answers at URL

With weights as F32, and llama.cpp's keys and values as F32 too, llama.cpp rounds nothing, and what is
left is what our F16 keys and values cost. Each answer is greedy and begins with its prompt; llama.cpp is given
the tokens of both, and its log-softmax is compared at each token, and at each of the most likely ones. So are
`prompt_logprobs`, with the ranks of the prompt's tokens, and the ids of all tokens.
"""

import json
import sys
import urllib.request

import numpy as np

import dequantized
import llama_cpp

TOP = 20
FEW = 3
NEAR = 0.01
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
    differences, of_prompts, of_objects = [], [], []
    # Other tests run beside this one, and threads of llama.cpp that wait for each other would wait for those.
    with llama_cpp.Model(path, threads=1, exact_kv=True) as model:
        ids = {model.piece(token): token for token in reversed(range(model.n_vocab))}
        for prompt in prompts:
            answer = ask(url, {"prompt": prompt, "max_tokens": TOKENS, "logprobs": TOP, "echo": True})
            for of_prompt, difference in of_answer(model, ids, prompt, answer["logprobs"]):
                (of_prompts if of_prompt else differences).append(difference)
            answer = ask(url, {"prompt": prompt, "max_tokens": TOKENS, "prompt_logprobs": FEW, "return_token_ids": True})
            of_objects.extend(of_prompt_logprobs(model, prompt, answer))
    assert len(prompts) == 40
    for name, found in [("answers", differences), ("prompts", of_prompts), ("prompt_logprobs", of_objects)]:
        mean, largest = np.mean(found), np.max(found)
        print(f"{len(prompts)} {name}, {len(found)} log probabilities: "
              f"mean difference {mean:.2e}, largest {largest:.2e}")
        assert len(found) >= 40 * TOP, "too few were compared"
        assert mean <= MEAN_TOLERANCE, f"mean {mean}"


def ask(url, body):
    body = json.dumps(body | {"temperature": 0}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]


def of_prompt_logprobs(model, prompt, answer):
    """The prompt's positions as vLLM lists them: its token first, then the most likely others."""
    given = model.tokenize(prompt, whole=True)
    assert answer["prompt_token_ids"] == given
    assert b"".join(model.piece(token) for token in answer["token_ids"]).decode(errors="replace") == answer["text"]
    assert len(answer["token_ids"]) == TOKENS
    listed = answer["prompt_logprobs"]
    assert len(listed) == len(given) and listed[0] is None
    model.reset()
    rows = model.run(given[:-1], all_positions=True)
    for row, token, position in zip(rows, given[1:], listed[1:], strict=True):
        expected = log_softmax(row)
        told = [(int(id), entry) for id, entry in position.items()]
        assert told[0][0] == token and len(told) in (FEW, FEW + 1), told
        by_rank = sorted(told, key=lambda it: it[1]["rank"])
        assert [entry["rank"] for _, entry in by_rank][:FEW] == [1, 2, 3], told
        for id, entry in told:
            assert entry["decoded_token"] == model.piece(id).decode(errors="replace"), entry
            yield abs(entry["logprob"] - expected[id])
            # What rounding may turn is near.
            surely = int((expected > expected[id] + NEAR).sum())
            at_most = int((expected > expected[id] - NEAR).sum())
            assert surely < entry["rank"] <= at_most, (id, entry, surely, at_most)


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
