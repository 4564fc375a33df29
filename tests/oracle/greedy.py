"""Greedy ids equal llama.cpp's: 40 varied prompts, 64 tokens each by default.

    python greedy.py MODEL ORCD_LOGITS [--steps 64] [--unrounded 40]

Step by step on the history that llama.cpp writes with the file as it is (teacher forcing), so that one early
difference is one difference and not as many as there are steps behind it. Two engines that round differently may swap two nearly equal
logits, so a difference counts only where llama.cpp's own two best are more than 0.3 apart.

Twice. With the model's weights as plain F32 numbers both engines do the same arithmetic, and differ
by the order of sums and llama.cpp's F16 cache only: 0.05 is asked instead of 0.3. There llama.cpp reads the
history at once: word by word it would read all these numbers for each. With the file as
it is, llama.cpp rounds activations to eight bits, and every rounding that tips the other way tips
more of them in the layers behind: two of its own ways to compute the same step (keys and values in
F16 with the fused kernel, or in F32 without) disagree about ten tokens in two hundred, at margins
up to 0.32. So there the margin is asked of both ways: a difference counts where llama.cpp is sure
of the same token, by more than 0.3, however it computes. By its default way alone a few of 2,560
differ (bench/results/correctness.md). All numbers are printed.

`--unrounded` is the number of prompts for plain F32 numbers, which take most of the time.
"""

import argparse
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import dequantized
import llama_cpp
import ours

CLEAR_MARGIN = 0.3
CLEAR_MARGIN_UNROUNDED = 0.05

QUESTIONS = [
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Explain photosynthesis to a child.",
    "List five prime numbers.",
    "Translate 'good morning' into Spanish, German and Italian.",
    "Why is the sky blue?",
    "Give me a recipe for pancakes.",
    "Write a Python function that reverses a string.",
    "Who wrote Hamlet, and when?",
    "Summarise the plot of Romeo and Juliet in two sentences.",
    "What is 17 times 23?",
    "Describe a sunset over the mountains.",
    "How do I boil an egg?",
    "What are the benefits of exercise?",
    "Tell me a joke about computers.",
    "Name three rivers in Africa.",
    "What does HTTP stand for?",
    "Write a polite email asking for a day off.",
    "Was ist die Hauptstadt von Deutschland?",
    "¿Cuántos planetas hay en el sistema solar?",
    "Explain the difference between TCP and UDP.",
    "Write SQL that counts users per country.",
    "What happened in 1969?",
    "How far away is the moon?",
    "Invent a name for a bakery.",
    "What is the meaning of the word 'serendipity'?",
]

RAW = [
    "Once upon a time",
    "The theory of relativity states that",
    "def fibonacci(n):\n",
    "#include <stdio.h>\n\nint main(void) {\n",
    "Dear Sir or Madam,\n\n",
    "1, 2, 3, 4, 5,",
    "The three most important inventions of the 19th century were",
    "import numpy as np\n\nx = np.",
    "In the beginning",
    "Ingredients:\n- 2 eggs\n-",
    "| name | age |\n|---|---|\n|",
    "Monday, Tuesday,",
    "It was a dark and stormy night;",
    "Q: What is the boiling point of water?\nA:",
]

PROMPTS = [
    f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n" for question in QUESTIONS
] + RAW


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("model")
    arguments.add_argument("program")
    arguments.add_argument("--steps", type=int, default=64)
    arguments.add_argument("--unrounded", type=int, default=len(PROMPTS))
    arguments.add_argument("--threads", type=int, default=1)
    arguments.add_argument("--device", default="cpu", help="ours: cpu or cuda:N")
    options = arguments.parse_args()

    with llama_cpp.Model(options.model, n_ctx=512, threads=options.threads) as reference:
        runs = [generate(reference, prompt, reference.tokenize(prompt), options.steps) for prompt in PROMPTS]
    with llama_cpp.Model(options.model, n_ctx=512, threads=options.threads, exact_kv=True) as reference:
        sure = [confirm(reference, run) for run in runs]
    counted = compare("the file as it is", options.model, options, runs, sure, CLEAR_MARGIN)
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "f32.gguf"
        dequantized.write(options.model, plain)
        with llama_cpp.Model(plain, n_ctx=512, threads=options.threads) as reference:
            runs = [follow(reference, run) for run in runs[:: len(PROMPTS) // options.unrounded]]
        sure = [[True] * options.steps] * len(runs)
        counted += compare("weights as F32", plain, options, runs, sure, CLEAR_MARGIN_UNROUNDED)
    return 0 if counted == 0 and len(PROMPTS) >= 40 else 1


@dataclass(frozen=True)
class Run:
    """A prompt, a history, where what was generated starts in it, and of each step from there llama.cpp's token and how far
    it is ahead of the next."""

    prompt: str
    history: list
    start: int
    tokens: list
    margins: list


@dataclass(frozen=True)
class Differences:
    """Steps at which our token is another one, as (prompt, step, ours, theirs, margin): where llama.cpp is sure of its own,
    where it is sure by its default way only, and where it is not."""

    counted: list
    one_way: list
    close: list


def compare(what, model, options, runs, sure, clear):
    """How many differences count."""
    flags = ["--threads", options.threads, "--device", options.device]
    found = differences(options.program, model, flags, runs, sure, clear)
    for prompt, step, mine, theirs, margin in found.counted:
        print(f"{prompt!r} step {step}: ours {mine}, llama.cpp {theirs}, margin {margin:.2f}")
    print(
        f"{what}: {len(runs)} prompts x {options.steps} tokens: {len(found.counted)} differences where llama.cpp is sure by "
        f"more than {clear}, {told(found.one_way)} where it is sure one way only, "
        f"{told(found.close)} where it is not"
    )
    return len(found.counted)


def differences(program, model, flags, runs, sure, clear):
    """Our tokens beside those of the runs. `sure`: of each run, at which steps llama.cpp's other way agrees with it."""
    requests = [
        {"tokens": run.history[:-1], "positions": list(range(run.start - 1, len(run.history) - 1))}
        for run in runs
    ]
    answers = ours.next_tokens(program, model, requests, "--batch", 8, *flags)
    found = Differences([], [], [])
    for run, certain, answer in zip(runs, sure, answers, strict=True):
        for step, (mine, theirs) in enumerate(zip(answer["argmax"], run.tokens, strict=True)):
            margin = run.margins[step]
            if mine == theirs:
                continue
            kind = found.close if margin <= clear else found.counted if certain[step] else found.one_way
            kind.append((run.prompt, step, mine, theirs, margin))
    return found


def told(steps):
    return f"{len(steps)} (up to {max(step[-1] for step in steps):.3f})" if steps else "0"


def generate(reference, prompt, ids, steps):
    """Goes on past an end token: the comparison is of the arithmetic, not of when to stop."""
    reference.reset()
    history = list(ids)
    start = len(history)
    row = reference.run(history)
    margins = []
    for _ in range(steps):
        second, best = np.partition(row, -2)[-2:]
        margins.append(float(best - second))
        history.append(int(row.argmax()))
        row = reference.run(history[-1:])
    return Run(prompt, history, start, history[start:], margins)


def follow(reference, run):
    """What this model would say at each step of a history."""
    reference.reset()
    rows = reference.run(run.history[:-1], all_positions=True)[run.start - 1 :]
    second, best = np.partition(rows, -2, axis=1)[:, -2:].T
    return replace(run, tokens=rows.argmax(axis=1).tolist(), margins=(best - second).tolist())


def confirm(reference, run):
    """At which steps the other way of computing chooses the same token, as clearly."""
    other = follow(reference, run)
    same = np.array(other.tokens) == np.array(run.tokens)
    return same & (np.array(other.margins) > CLEAR_MARGIN)


if __name__ == "__main__":
    sys.exit(main())
