"""Logits of tiny random models, every architecture times every tensor type, against llama.cpp.

    python architectures.py ORCD_LOGITS [--fewer] [--only NAME] [--device cuda:0]

With `--fewer` an architecture, but for the first one and the first one with experts, has F32, Q4_K and an eighth of the other
types that are quantized quickly, each architecture another eighth: products with a type do not depend on the architecture, and
quantizing takes most of the time.

One of them is in several files, which `gguf` writes and llama.cpp reads, too.

Each file is run twice on our side: once with every history as one prefill chunk, once token by
token as in decoding; llama.cpp runs its own prefill with keys and values in F32. Positions from
1 on are compared (position 0 says nothing about rotation or attention) by the normalised error
of a row, sum((a-b)^2) / sum(b^2); the worst row of a file counts.

Why these tolerances: with F32 weights only the order of sums differs, and that our KV cache
holds F16, which llama.cpp's own F16 cache shows to be worth 5e-7. F16 and BF16: llama.cpp
rounds activations to the weights' type before the product, we need not. Quantized types: both
round activations to eight bits per block, with blocks and scales that need not agree; that
rounding is about 1/256 of a block's largest value per element, which is some 1e-5 to 1e-4 of a
sum's energy per product and adds up over the products that lie behind one logit. Where heads of a delta net have a norm,
which makes such an error larger, llama.cpp computes with the same weights as F32: with K-quants its own error is up to
1.4e-2 there, and ours 1.5e-3. Gemma 4 has norms of values, too, and short convolutions multiply three products of a row: they are
compared in the same way. A wrong
pairing in RoPE, a missing bias or a nibble read from the wrong half gives 1e-1 and more.
So does a token that is sent to another expert: see `tiny_models.Routers`.
"""

import argparse
import functools
import multiprocessing
import os
import random
import sys
import tempfile
import zlib
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import dequantized
import llama_cpp
import ours
import tiny_models

IN_PARTS = "qwen3-Q4_K-in-parts"
ALWAYS = ("F32", "Q4_K")
# Quantizing to these takes ten times as long as to others.
SLOW = ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS")
# Products of experts are those of all matrices: what each type does to them is seen without experts.
TYPES_OF_EXPERTS = ("F32", "F16", "BF16", "Q8_0", "Q4_K", "Q6_K", "MXFP4")

TOLERANCE = {"F32": 2e-6, "F16": 5e-6, "BF16": 1e-4}
# Of models of so many layers or fewer; of deeper ones in proportion.
TOLERANCE_QUANTIZED, LAYERS = 2e-3, 3
# What swapping the first two tokens must do to the last logits.
MIN_ORDER_EFFECT = 1e-4


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("program")
    arguments.add_argument("--fewer", action="store_true", help="of most architectures, an eighth of the types")
    arguments.add_argument("--only", help="a substring of ARCHITECTURE-TYPE")
    arguments.add_argument("--device", default="cpu", help="ours: cpu or cuda:N")
    options = arguments.parse_args()

    jobs = every_job(options.fewer)
    jobs.append(Job(IN_PARTS, tiny_models.MAIN[2], "Q4_K", 7, tensors_a_file=10))
    jobs = [job for job in jobs if not options.only or options.only in job.name]
    compared = functools.partial(compare, program=options.program, device=options.device)
    failures = 0
    # One thread for each model, and one model for each processor: they are too small for more. A device is used by one.
    workers = os.cpu_count() if options.device == "cpu" else 1
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        for good, line in pool.map(compared, jobs):
            failures += not good
            print(line, flush=True)
    print(f"{len(jobs)} models, {failures} outside their tolerance")
    return 1 if failures or not jobs else 0


@dataclass(frozen=True)
class Job:
    """A model to write and to compare."""

    name: str
    variant: tiny_models.Variant
    type_name: str
    seed: int
    tensors_a_file: int = 0


def every_job(fewer):
    """Each architecture times its types; what only changes arithmetic with weights that hide nothing, and with one type that does."""
    firsts = [0, next(i for i, v in enumerate(tiny_models.MAIN) if v.experts_used)]
    cases = [
        (v, t)
        for i, v in enumerate(tiny_models.MAIN)
        for j, t in enumerate(TYPES_OF_EXPERTS if v.experts_used else tiny_models.TYPES)
        if not fewer or i in firsts or t in ALWAYS or (t not in SLOW and (i + j) % 8 == 0)
    ]
    cases += [(v, t) for v in tiny_models.MAIN[:3] for t in tiny_models.MIXES]
    cases += [(v, t) for v in tiny_models.EXTRA for t in ("F32", "Q4_K")]
    cases += [(v, "F32") for v in tiny_models.FREE]
    return [Job(f"{v.name}-{t}", v, t, seed_of(v, t)) for v, t in cases]


def seed_of(variant, type_name):
    """The same whatever other cases there are."""
    if variant.free_seed is not None:
        return variant.free_seed
    return zlib.crc32(f"{variant.name}-{type_name}".encode())


def compare(job, program, device):
    """Whether it is within its tolerance, and a line that says so."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{job.name}.gguf"
        tiny_models.write(path, job.variant, job.type_name, job.seed, tensors_a_file=job.tensors_a_file)
        if job.tensors_a_file:
            path, *others = sorted(Path(folder).iterdir())
            if not others:
                return False, f"FAIL {job.name} is one file"
        return compare_file(path, job, program, device)


def compare_file(path, job, program, device):
    count = job.variant.tokens
    # All different: among equal tokens attention has nothing to choose, and rotation no effect.
    tokens = random.Random(job.seed).sample(range(tiny_models.N_VOCAB), count)
    numbers = path
    rounds = job.type_name == "BF16" or job.type_name not in TOLERANCE
    enlarges = job.variant.attention_every or job.variant.conv_layers or job.variant.mamba_layers
    if job.variant.is_gemma4 and rounds or enlarges and job.type_name not in TOLERANCE:
        numbers = path.with_suffix(".f32.gguf")
        dequantized.write(path, numbers)
    with llama_cpp.Model(numbers, n_ctx=tiny_models.CONTEXT, threads=1, exact_kv=True) as reference:
        theirs = reference.run(tokens, all_positions=True)[1:]
        # Within a window, if there is one: what is far behind it hardly shows.
        near = max(job.variant.window // 2, 3) if job.variant.window else count
        check_that_order_matters(reference, tokens[:near], theirs[near - 2])
    prefixes = [{"tokens": tokens[: n + 1], "positions": [n]} for n in range(1, count)]
    context = ["--context", tiny_models.CONTEXT, "--device", device]
    if device == "cpu":
        context += ["--threads", 1]
    prefill = np.concatenate(ours.logits(program, path, prefixes, tiny_models.N_VOCAB, *context))
    stepwise = [{"tokens": tokens, "positions": list(range(count))}]
    decode = ours.logits(program, path, stepwise, tiny_models.N_VOCAB, *context)[0][1:]

    deeper = max(job.variant.layers / LAYERS, 1)
    allowed = TOLERANCE.get(job.type_name, TOLERANCE_QUANTIZED * deeper)
    worst = normalised_error(prefill, theirs)
    # Our own law: how a history was cut into steps changes no bit.
    identical = np.array_equal(prefill.view(np.uint32), decode.view(np.uint32))
    good = worst <= allowed and identical
    note = "" if identical else ", prefill and decode differ"
    return good, f"{'ok  ' if good else 'FAIL'} {job.name:28} {worst:.1e} (allowed {allowed:.1e}){note}"


def check_that_order_matters(reference, tokens, last_row):
    """The oracle's own test: were the first tokens' order invisible in the last of these logits, a wrong
    rotation would be invisible too."""
    reference.reset()
    swapped = reference.run([tokens[1], tokens[0], *tokens[2:]])
    effect = normalised_error(swapped[None], last_row[None])
    if effect < MIN_ORDER_EFFECT:
        raise RuntimeError(f"two swapped tokens change the last logits by only {effect:.1e}")


def normalised_error(mine, theirs):
    """A NaN on either side is an infinite error, never a small one."""
    a, b = mine.astype(np.float64), theirs.astype(np.float64)
    rows = ((a - b) ** 2).sum(axis=1) / (b**2).sum(axis=1)
    return float(np.where(np.isfinite(rows), rows, np.inf).max())


if __name__ == "__main__":
    sys.exit(main())
