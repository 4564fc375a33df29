"""Perplexity on real text is within 0.5 % of llama.cpp's on the same file.

    python perplexity.py MODEL ORCD_LOGITS [--windows 17]

The text is cut into windows of 512 tokens; every token but a window's first is scored on the
window before it. Both engines see the same ids.
"""

import argparse
import math
import sys

import numpy as np

import llama_cpp
import ours
import prose

WINDOW = 512
TOLERANCE = 0.005
LEAST_SCORED = 2000


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("model")
    arguments.add_argument("program")
    arguments.add_argument("--windows", type=int, default=17)
    arguments.add_argument("--threads", type=int, default=1)
    options = arguments.parse_args()

    with llama_cpp.Model(options.model, n_ctx=WINDOW, threads=options.threads) as reference:
        ids = reference.tokenize(prose.text(characters=options.windows * WINDOW * 6))
        windows = [ids[i * WINDOW : (i + 1) * WINDOW] for i in range(options.windows)]
        if len(windows[-1]) != WINDOW:
            raise RuntimeError(f"only {len(ids)} tokens of text")
        theirs = [nll_of(reference, window) for window in windows]

    requests = [{"tokens": w, "positions": list(range(WINDOW - 1))} for w in windows]
    answers = ours.next_tokens(
        options.program, options.model, requests, "--threads", options.threads, "--batch", 8
    )
    mine = [answer["nll"] for answer in answers]

    scored = options.windows * (WINDOW - 1)
    ppl_theirs = math.exp(np.concatenate(theirs).mean())
    ppl_mine = math.exp(np.concatenate(mine).mean())
    difference = ppl_mine / ppl_theirs - 1
    print(
        f"{scored} tokens scored: perplexity ours {ppl_mine:.4f}, llama.cpp {ppl_theirs:.4f}, "
        f"difference {difference:+.3%} (allowed {TOLERANCE:.1%})"
    )
    return 0 if abs(difference) <= TOLERANCE and scored >= LEAST_SCORED else 1


def nll_of(reference, window):
    reference.reset()
    rows = reference.run(window, all_positions=True)[:-1].astype(np.float64)
    peak = rows.max(axis=1)
    log_sum = peak + np.log(np.exp(rows - peak[:, None]).sum(axis=1))
    return log_sum - rows[np.arange(len(window) - 1), window[1:]]


if __name__ == "__main__":
    sys.exit(main())
