"""Greedy ids equal llama.cpp's: 40 varied prompts, 64 tokens each.

    python greedy.py MODEL ORCD_LOGITS

Step by step on llama.cpp's own history (teacher forcing), so that one early difference is one
difference and not sixty-four. Two engines that round differently may swap two nearly equal
logits, so a difference counts only where llama.cpp's own two best are more than 0.3 apart.

llama.cpp rounds activations to eight bits, and every rounding that tips the other way tips more
of them in the layers behind: on this model two of its own ways to compute the same step (keys and
values in F16 with the fused kernel, or in F32 without) disagree about ten tokens in two hundred,
at margins up to 0.32, and exact arithmetic on the same weights disagrees with it at margins up
to 0.6. So the margin is asked of both ways: a difference counts where llama.cpp is sure of the
same token, by more than 0.3, however it computes. That is weaker than a margin of its default way
alone, by which a few of 2,560 differ (bench/results/correctness.md). All numbers are printed.
"""

import argparse
import sys

import numpy as np

import llama_cpp
import ours

STEPS = 64
CLEAR_MARGIN = 0.3

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


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("model")
    arguments.add_argument("program")
    arguments.add_argument("--threads", type=int, default=2)
    options = arguments.parse_args()

    prompts = [
        f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n" for question in QUESTIONS
    ] + RAW
    with llama_cpp.Model(options.model, n_ctx=512, threads=options.threads) as reference:
        runs = [generate(reference, prompt) for prompt in prompts]
    with llama_cpp.Model(options.model, n_ctx=512, threads=options.threads, exact_kv=True) as reference:
        sure = [confirm(reference, history, start) for history, start, _ in runs]

    requests = [
        {"tokens": history[:-1], "positions": list(range(start - 1, start - 1 + STEPS))}
        for history, start, _ in runs
    ]
    answers = ours.next_tokens(
        options.program, options.model, requests, "--threads", options.threads, "--batch", 8
    )

    counted, one_way, close_calls = 0, 0, 0
    for prompt, run, certain, answer in zip(prompts, runs, sure, answers, strict=True):
        history, start, margins = run
        for step, (mine, theirs) in enumerate(zip(answer["argmax"], history[start:], strict=True)):
            if mine == theirs:
                continue
            if margins[step] <= CLEAR_MARGIN:
                close_calls += 1
            elif not certain[step]:
                one_way += 1
            else:
                counted += 1
                print(f"{prompt!r} step {step}: ours {mine}, llama.cpp {theirs}, margin {margins[step]:.2f}")
    print(
        f"{len(prompts)} prompts x {STEPS} tokens: {counted} differences where llama.cpp is sure by more "
        f"than {CLEAR_MARGIN}, {one_way} where it is sure one way only, {close_calls} where it is not"
    )
    return 0 if counted == 0 and len(prompts) >= 40 else 1


def generate(reference, prompt):
    """History, where generation starts in it, and llama.cpp's margin at each step. Goes on past
    an end token: the comparison is of the arithmetic, not of when to stop."""
    reference.reset()
    history = reference.tokenize(prompt)
    start = len(history)
    row = reference.run(history)
    margins = []
    for _ in range(STEPS):
        second, best = np.partition(row, -2)[-2:]
        margins.append(float(best - second))
        history.append(int(row.argmax()))
        row = reference.run(history[-1:])
    return history, start, margins


def confirm(reference, history, start):
    """At which steps the other way of computing chooses the same token, as clearly."""
    reference.reset()
    rows = reference.run(history[:-1], all_positions=True)[start - 1 :]
    second, best = np.partition(rows, -2, axis=1)[:, -2:].T
    same = rows.argmax(axis=1) == np.array(history[start:])
    return same & (best - second > CLEAR_MARGIN)


if __name__ == "__main__":
    sys.exit(main())
