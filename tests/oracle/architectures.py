"""Logits of tiny random models, every architecture times every tensor type, against llama.cpp.

    python architectures.py ORCD_LOGITS [--only NAME] [--device cuda:0]

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
sum's energy per product and adds up over the products that lie behind one logit. A wrong
pairing in RoPE, a missing bias or a nibble read from the wrong half gives 1e-1 and more.
So does a token that is sent to another expert: see `tiny_models.Routers`.
"""

import argparse
import random
import sys
import tempfile
import zlib
from pathlib import Path

import numpy as np

import llama_cpp
import ours
import tiny_models

IN_PARTS = "qwen3-Q4_K-in-parts"
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
    arguments.add_argument("--only", help="a substring of ARCHITECTURE-TYPE")
    arguments.add_argument("--device", default="cpu", help="ours: cpu or cuda:N")
    options = arguments.parse_args()

    cases = [
        (v, t) for v in tiny_models.MAIN for t in tiny_models.TYPES if not v.experts_used or t in TYPES_OF_EXPERTS
    ]
    cases += [(v, t) for v in tiny_models.MAIN[:3] for t in tiny_models.MIXES]
    cases += [(v, t) for v in tiny_models.EXTRA for t in ("F32", "Q4_K")]
    cases += [(v, "F32") for v in tiny_models.FREE]
    if options.device != "cpu":
        # Refused there by name.
        cases = [(v, t) for v, t in cases if not v.experts_used]
    if options.only:
        cases = [(v, t) for v, t in cases if options.only in f"{v.name}-{t}"]
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        for variant, type_name in cases:
            # The same whatever other cases there are.
            seed = zlib.crc32(f"{variant.name}-{type_name}".encode())
            if variant.free_seed is not None:
                seed = variant.free_seed
            path = Path(folder) / f"{variant.name}-{type_name}.gguf"
            tiny_models.write(path, variant, type_name, seed)
            failures += not compare(path, variant, type_name, options, seed)
            path.unlink()
        if not options.only or options.only in IN_PARTS:
            path = Path(folder) / f"{IN_PARTS}.gguf"
            tiny_models.write(path, tiny_models.MAIN[2], "Q4_K", 7, tensors_a_file=10)
            first, *others = sorted(Path(folder).glob(f"{IN_PARTS}-*"))
            cases.append(first)
            failures += not (others and compare(first, tiny_models.MAIN[2], "Q4_K", options, 7))
    print(f"{len(cases)} models, {failures} outside their tolerance")
    return 1 if failures or not cases else 0


def compare(path, variant, type_name, options, seed):
    count = variant.tokens
    # All different: among equal tokens attention has nothing to choose, and rotation no effect.
    tokens = random.Random(seed).sample(range(tiny_models.N_VOCAB), count)
    with llama_cpp.Model(path, n_ctx=tiny_models.CONTEXT, threads=1, exact_kv=True) as reference:
        theirs = reference.run(tokens, all_positions=True)[1:]
        # Within a window, if there is one: what is far behind it hardly shows.
        near = max(variant.window // 2, 3) if variant.window else count
        check_that_order_matters(reference, tokens[:near], theirs[near - 2])
    prefixes = [{"tokens": tokens[: n + 1], "positions": [n]} for n in range(1, count)]
    program = options.program
    context = ("--context", tiny_models.CONTEXT, "--device", options.device)
    prefill = np.concatenate(ours.logits(program, path, prefixes, tiny_models.N_VOCAB, *context))
    stepwise = [{"tokens": tokens, "positions": list(range(count))}]
    decode = ours.logits(program, path, stepwise, tiny_models.N_VOCAB, *context)[0][1:]

    deeper = max(variant.layers / LAYERS, 1)
    allowed = TOLERANCE.get(type_name, TOLERANCE_QUANTIZED * deeper)
    worst = normalised_error(prefill, theirs)
    # Our own law: how a history was cut into steps changes no bit.
    identical = np.array_equal(prefill.view(np.uint32), decode.view(np.uint32))
    good = worst <= allowed and identical
    note = "" if identical else ", prefill and decode differ"
    print(f"{'ok  ' if good else 'FAIL'} {path.stem:28} {worst:.1e} (allowed {allowed:.1e}){note}")
    return good


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
