"""Files of bench/gpu/models.py, which is how speed is measured: llama.cpp loads them, and draws
the same tokens greedily as we do.

    python random_models.py ORCD_LOGITS

Two layers of true widths and a short vocabulary, of every shape that decides anything (queries
with biases and without, experts, gpt-oss) and every type of file. There are as many experts as a token
uses: of two that are about as likely, each engine may choose another. As in greedy.py the history is llama.cpp's, so one
difference is one difference, and it counts only where llama.cpp's two best logits are clearly apart:
with random weights that is so at two steps in five.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import llama_cpp
import ours

WRITER = Path(__file__).resolve().parents[2] / "bench/gpu/models.py"
TYPES = ["F16", "Q8_0", "Q4_K_M"]
# Files, and how many experts they have.
FILES = [("0.5b", kind, None) for kind in TYPES]
FILES += [("8b", "Q4_K_M", None), ("30b-a3b", "Q4_K_M", 8), ("30b-a3b", "MXFP4_MOE", 8), ("gpt-oss-20b", "MXFP4_MOE", 4)]
VOCABULARY = 3000
# Behind these rows of the vocabulary nothing is drawn: their weights are zeros.
SILENT = 131
PROMPTS = ["Q W E R T Y", "Z X C V B N M", "A S D F G H J K L"]
STEPS = 16
CLEAR_MARGIN = 0.3
MIN_CLEAR = 90


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("program")
    arguments.add_argument("--device", default="cpu", help="ours: cpu or cuda:N")
    options = arguments.parse_args()

    counted, clear = 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for shape, kind, experts in FILES:
            path = Path(folder) / f"{shape}-{kind}.gguf"
            make(shape, kind, experts, path)
            found = compare(path, options)
            counted, clear = counted + found[0], clear + found[1]
            path.unlink()
    print(f"{counted} differences among {clear} tokens of which llama.cpp is sure")
    return 0 if counted == 0 and clear >= MIN_CLEAR else 1


def make(shape, kind, experts, path):
    shallow = ["--layers", "2", "--vocabulary", str(VOCABULARY)]
    shallow += ["--experts", str(experts)] if experts else []
    command = [sys.executable, "-B", str(WRITER), shape, kind, str(path), *shallow]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def compare(path, options):
    """How many differences count, among how many tokens of which llama.cpp is sure."""
    with llama_cpp.Model(path, n_ctx=256) as reference:
        runs = [generate(reference, prompt) for prompt in PROMPTS]
    requests = [
        {"tokens": history[:-1], "positions": list(range(start - 1, start - 1 + STEPS))}
        for history, start, _ in runs
    ]
    answers = ours.next_tokens(options.program, path, requests, "--device", options.device)
    counted, clear, close = 0, 0, 0
    for (history, start, margins), answer in zip(runs, answers, strict=True):
        for mine, theirs, margin in zip(answer["argmax"], history[start:], margins, strict=True):
            clear += margin > CLEAR_MARGIN
            counted += mine != theirs and margin > CLEAR_MARGIN
            close += mine != theirs and margin <= CLEAR_MARGIN
    print(f"{path.stem}: {clear} clear tokens, {counted} differ; {close} of the others differ")
    return counted, clear


def generate(reference, prompt):
    """History, where generation starts in it, and llama.cpp's margin at each step."""
    reference.reset()
    history = reference.tokenize(prompt, whole=True)
    start = len(history)
    letters = len(prompt.split(" "))
    if start != letters:
        raise RuntimeError(f"{letters} letters are {start} tokens")
    row, margins = reference.run(history), []
    # No two tokens that can be drawn have the same weights.
    if len(np.unique(row)) < 0.98 * (VOCABULARY - SILENT):
        raise RuntimeError("many logits are equal")
    for _ in range(STEPS):
        second, best = np.partition(row, -2)[-2:]
        margins.append(float(best - second))
        history.append(int(row.argmax()))
        row = reference.run(history[-1:])
    return history, start, margins


if __name__ == "__main__":
    sys.exit(main())
