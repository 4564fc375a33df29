"""Greedy ids equal llama.cpp's: 40 varied prompts, 64 tokens each.

    python greedy.py MODEL ORCD_LOGITS

Step by step on llama.cpp's own history (teacher forcing), so that one early difference is one
difference and not sixty-four. Two engines that round differently may swap two nearly equal
logits, so a difference counts only where llama.cpp's own two best are more than 0.3 apart;
how many do not count is printed all the same.
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

    requests = [
        {"tokens": history[:-1], "positions": list(range(start - 1, start - 1 + STEPS))}
        for history, start, _ in runs
    ]
    answers = ours.next_tokens(
        options.program, options.model, requests, "--threads", options.threads, "--batch", 8
    )

    counted, close_calls = 0, 0
    for prompt, (history, start, margins), answer in zip(prompts, runs, answers, strict=True):
        for step, (mine, theirs) in enumerate(zip(answer["argmax"], history[start:], strict=True)):
            if mine == theirs:
                continue
            if margins[step] > CLEAR_MARGIN:
                counted += 1
                print(f"{prompt!r} step {step}: ours {mine}, llama.cpp {theirs}, margin {margins[step]:.2f}")
            else:
                close_calls += 1
    print(
        f"{len(prompts)} prompts x {STEPS} tokens: {counted} differences at a margin above {CLEAR_MARGIN}, "
        f"{close_calls} below"
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


if __name__ == "__main__":
    sys.exit(main())
