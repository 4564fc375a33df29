"""Logits of tiny random models against Hugging Face's `transformers`, and llama.cpp's between them.

    python transformers_logits.py ORCD_LOGITS [--only NAME]

The models and types are those of `architectures.py`, and so is the measure: the worst normalised error of a row past
position 0. `transformers` computes a history as one prompt, and again as a prompt with single tokens behind it, with its
own cache; we compute each prefix as a prompt, and the history token by token.

With weights in F32 there are LENGTH tokens, which is past every window and every original context, and four errors:

- llama.cpp against `transformers`, both with keys and values in F32. Only the order of sums differs, and that llama.cpp
  looks GELU up in a table of F16.
- Ours against `transformers` as it is. Our cache holds F16.
- Ours against `transformers` with keys and values rounded to F16. Only the order of sums differs, and with it which
  way a value between two of F16 goes.
- `transformers` in F32 against itself in F64, keys and values rounded to F16: what that alone comes to.

Then `transformers` is made to do one thing otherwise at a time, and the third error has to see each. The last table is of
what `transformers` and llama.cpp define otherwise, where we follow llama.cpp.
"""

import argparse
import functools
import multiprocessing
import os
import random
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
import transformers

import architectures
import llama_cpp
import ours
import tiny_models
import transformers_models
from architectures import normalised_error

LENGTH = 80
# Of LENGTH; the rest comes token by token. Past the longest original context: of Phi-3 both sides have one list of
# factors from there on.
PROMPT = 66
# All of models of three layers or fewer, and of deeper ones in proportion. We round rows where weights are quantized, and
# nowhere else.
ALLOWED, ALLOWED_QUANTIZED = 1e-6, 1e-3
ALLOWED_BETWEEN_REFERENCES, ALLOWED_WITH_TABLE_OF_GELU = 1e-10, 1e-6
ALLOWED_WITH_ONE_CACHE = 5e-8
# In `architectures.py` it would take longer than the rest of its family, for each type.
LARGEST_GEMMA = replace(
    tiny_models.named("gemma3"), name="gemma3-62-layers", layers=transformers_models.LAYERS_OF_LARGEST_GEMMA, head_dim=128
)
# Tokens behind which the published rotation of gpt-oss is looked at.
FAR = 2000


@dataclass(frozen=True)
class Change:
    """Something that `transformers` is made to do otherwise."""

    variant: str
    what: str
    # Of the configuration.
    configuration: dict = field(default_factory=dict)
    # Of the model.
    edit: Callable | None = None
    # Of models, where it is another one than the variant's.
    family: str | None = None
    tokens: int = LENGTH


def _rotation(**values):
    return {"rope_parameters": values}


def _layers(model):
    return model.model.layers


def _reorder_rows(model):
    for layer in _layers(model):
        for matrix in (layer.self_attn.q_proj, layer.self_attn.k_proj):
            matrix.weight.data = torch.tensor(transformers_models.halves(matrix.weight.numpy(force=True), 64))


def _drop_biases(model):
    for layer in _layers(model):
        layer.self_attn.k_proj.bias.data.zero_()


def _flatten_head_norms(model):
    for layer in _layers(model):
        layer.self_attn.k_norm.weight.data.fill_(1.0)


def _drop_sinks(model):
    for layer in _layers(model):
        layer.self_attn.sinks.data.fill_(float("-inf"))


def _drop_weight_of_shared_expert(model):
    for layer in _layers(model):
        layer.mlp.shared_expert_gate.weight.data.zero_()


SEEN = [
    Change("llama", "rows of queries and keys in another order", edit=_reorder_rows),
    Change("llama3-rope", "long waves begin elsewhere", _rotation(low_freq_factor=2.0)),
    Change("llama-linear-rope", "no linear scale", _rotation(factor=1.0)),
    Change("llama-yarn", "YaRN: bounds that are not rounded", _rotation(truncate=False)),
    Change("llama-yarn", "YaRN: cos and sin not stretched", _rotation(attention_factor=1.0)),
    Change("llama-yarn", "YaRN: another original context", _rotation(original_max_position_embeddings=32)),
    Change("qwen2", "no biases of keys", edit=_drop_biases),
    Change("qwen3", "no weights of the norms of keys", edit=_flatten_head_norms),
    Change("phi3-partial-rope", "all of a head rotated", _rotation(partial_rotary_factor=1.0)),
    Change("phi3-short-factors", "cos and sin not stretched", _rotation(attention_factor=1.0)),
    Change("gemma3", "a window longer by one", {"sliding_window": 7}),
    Change("gemma3", "a window shorter by one", {"sliding_window": 5}),
    Change("gemma3", "one rotation", _rotation(sliding_attention={"rope_type": "default", "rope_theta": 1e6})),
    Change("gemma3", "GELU by erf in place of tanh", {"hidden_activation": "gelu"}),
    Change("gemma3-pattern", "no layer sees all", {"layer_types": ["sliding_attention"] * 7}),
    Change("mistral3", "no temperature", _rotation(llama_4_scaling_beta=0.0)),
    Change("mistral3", "cos and sin stretched", _rotation(mscale_all_dim=None)),
    Change("mistral3-log", "a multiplier of 1", _rotation(mscale_all_dim=1.0)),
    Change("smollm3", "every layer rotates", {"no_rope_layers": [1] * 5}),
    Change("mixtral", "one expert for two", {"num_experts_per_tok": 1}),
    Change("qwen3moe", "weights of experts not divided by their sum", {"norm_topk_prob": False}),
    Change("qwen2moe", "weights of experts divided by their sum", {"norm_topk_prob": True}),
    Change("qwen2moe", "a shared expert that counts half", edit=_drop_weight_of_shared_expert),
    Change("gpt-oss", "no sinks", edit=_drop_sinks),
    Change("gpt-oss", "a window longer by one", {"sliding_window": 17}),
    Change("gpt-oss", "a window shorter by one", {"sliding_window": 15}),
    Change("gpt-oss", "no limit of the clamped unit", {"swiglu_limit": 1e6}),
    Change("gpt-oss", "SiLU in the clamped unit", {"swiglu_alpha": 1.0}),
]

DEFINED_OTHERWISE = [
    Change("gpt-oss", "YaRN's bounds are not rounded (`truncate: false`)", _rotation(truncate=False)),
    Change("phi3-long-factors", "within the original context a prompt has the short factors", tokens=64),
    Change("phi3", "a window in every layer, here of 20 positions", {"sliding_window": 20}),
    Change("llama", "the same, of the first Mistral 7B", {"sliding_window": 20}, family="Mistral"),
]


@dataclass
class Result:
    job: architectures.Job
    positions: int
    as_is: float
    identical: bool
    # Only with weights in F32.
    between_references: float = 0.0
    one_cache: float = 0.0
    in_double: float = 0.0

    def is_good(self):
        return (
            self.identical
            and self.as_is <= allowed_as_is(self.job)
            and self.one_cache <= ALLOWED_WITH_ONE_CACHE * deeper(self.job.variant)
            and self.between_references <= allowed_between_references(self.job.variant)
        )

    def line(self):
        parts = [f"{self.as_is:.1e} (allowed {allowed_as_is(self.job):.1e})"]
        if self.one_cache:
            parts += [f"one cache {self.one_cache:.1e}", f"llama.cpp {self.between_references:.1e}"]
        if not self.identical:
            parts.append("our prefill and decode differ")
        return f"{'ok  ' if self.is_good() else 'FAIL'} {self.job.name:28} {', '.join(parts)}"


def deeper(variant):
    """How many times as deep as the models are for which a number was chosen."""
    return max(variant.layers / architectures.LAYERS, 1)


def allowed_as_is(job):
    is_rounded = job.type_name not in ("F32", "F16", "BF16")
    return (ALLOWED_QUANTIZED if is_rounded else ALLOWED) * deeper(job.variant)


def allowed_between_references(variant):
    has_gelu = variant.architecture == "gemma3"
    return (ALLOWED_WITH_TABLE_OF_GELU if has_gelu else ALLOWED_BETWEEN_REFERENCES) * deeper(variant)


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("program")
    arguments.add_argument("--only", default="", help="a substring of ARCHITECTURE-TYPE")
    options = arguments.parse_args()

    jobs = [*architectures.every_job(fewer=False), architectures.Job("gemma3-62-layers-F32", LARGEST_GEMMA, "F32", 1)]
    jobs = [job for job in jobs if options.only in job.name]
    seen = [change for change in SEEN if options.only in f"{change.variant}-F32"]
    otherwise = [change for change in DEFINED_OTHERWISE if options.only in f"{change.variant}-F32"]
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn"), _quiet) as pool:
        results, failures = [], 0
        for result in pool.map(functools.partial(compare, program=options.program), jobs):
            failures += not result.is_good()
            print(result.line(), file=sys.stderr, flush=True)
            results.append(result)
        errors = list(pool.map(functools.partial(changed, program=options.program), [*seen, *otherwise]))
        far = pool.submit(published_rotation).result()
    for change, error in zip(seen, errors, strict=False):
        is_seen = error > ALLOWED_WITH_ONE_CACHE * deeper(tiny_models.named(change.variant))
        failures += not is_seen
        print(f"{'seen' if is_seen else 'FAIL'} {change.variant}: {change.what}: {error:.1e}", file=sys.stderr)
    print(f"{len(jobs)} models and {len(seen)} changes, {failures} outside", file=sys.stderr)
    print_report(results, list(zip([*seen, *otherwise], errors, strict=True)), far)
    return 1 if failures or not jobs else 0


def _quiet():
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)


def compare(job, program):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{job.name}.gguf"
        tiny_models.write(path, job.variant, job.type_name, job.seed)
        model = transformers_models.load(path, job.variant)
        is_exact = job.type_name == "F32"
        is_long = is_exact or job.variant.rope_original_context
        count, prompt = (LENGTH, PROMPT) if is_long else (job.variant.tokens, job.variant.tokens // 2)
        tokens = tokens_of(job.seed, count)
        ways = [[count], [prompt] + [1] * (count - prompt)]
        prefill, decode = our_logits(program, path, tokens)
        theirs = [transformers_models.logits(model, tokens, chunks) for chunks in ways]
        result = Result(job, count - 1, worst(prefill, theirs), (prefill == decode).all())
        if is_exact:
            rounded = transformers_models.HalfCache
            theirs_rounded = [transformers_models.logits(model, tokens, chunks, rounded) for chunks in ways]
            result.one_cache = worst(prefill, theirs_rounded)
            with llama_cpp.Model(path, n_ctx=tiny_models.CONTEXT, threads=1, exact_kv=True) as reference:
                result.between_references = worst(reference.run(tokens, all_positions=True)[1:], theirs)
            # The last: it changes the model.
            in_double = transformers_models.logits(model.double(), tokens, [count], rounded)
            result.in_double = worst(in_double[1:], theirs_rounded)
        return result


def tokens_of(seed, count):
    """All different, as in `architectures.py`."""
    return random.Random(seed).sample(range(tiny_models.N_VOCAB), count)


def our_logits(program, path, tokens):
    """Past position 0: of each prefix as a prompt, and token by token."""
    count = len(tokens)
    options = ["--context", tiny_models.CONTEXT]
    stepwise = [{"tokens": tokens, "positions": list(range(1, count))}]
    prefixes = [{"tokens": tokens[: n + 1], "positions": [n]} for n in range(1, count)]
    rows = ours.logits(program, path, prefixes + stepwise, tiny_models.N_VOCAB, *options)
    *prefill, decode = rows
    return np.concatenate(prefill), decode


def worst(mine, theirs):
    return max(normalised_error(mine, rows[1:]) for rows in theirs)


def changed(change, program):
    """The error of our logits where `transformers` does something else."""
    variant = tiny_models.named(change.variant)
    seed = architectures.seed_of(variant, "F32")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        tiny_models.write(path, variant, "F32", seed)
        model = transformers_models.load(path, variant, change.family, **change.configuration)
        if change.edit:
            change.edit(model)
        tokens = tokens_of(seed, change.tokens)
        theirs = transformers_models.logits(model, tokens, [len(tokens)], transformers_models.HalfCache)
        _, mine = our_logits(program, path, tokens)
        return worst(mine, [theirs])


def published_rotation():
    """What rounding YaRN's bounds changes within FAR tokens, with the numbers of OpenAI's files: `transformers` against
    itself. The median and the worst."""
    variant = tiny_models.named("gpt-oss")
    seed = architectures.seed_of(variant, "F32")
    tokens = random.Random(seed).choices(range(tiny_models.N_VOCAB), k=FAR)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        tiny_models.write(path, variant, "F32", seed)
        rows = []
        for truncate in (False, True):
            published = {"factor": 32.0, "original_max_position_embeddings": 4096, "truncate": truncate}
            model = transformers_models.load(path, variant, **_rotation(**published))
            rows.append(transformers_models.logits(model, tokens, [FAR])[1:])
    errors = [normalised_error(one[None], other[None]) for one, other in zip(*rows, strict=True)]
    return float(np.median(errors)), max(errors)


def print_report(results, changes, far):
    """Markdown, for bench/results/."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("transformers", "torch", "xllamacpp"))
    print(f"References: {versions}. Errors are normalised, of the worst position past 0.\n")
    exact = [result for result in results if result.job.type_name == "F32"]
    print(f"Weights in F32. Allowed: {ALLOWED_BETWEEN_REFERENCES:.0e} between the references (Gemma: "
          f"{ALLOWED_WITH_TABLE_OF_GELU:.0e}), {ALLOWED:.0e}, and {ALLOWED_WITH_ONE_CACHE:.0e} with one kind of cache; of more\n"
          f"than {architectures.LAYERS} layers in proportion.\n")
    columns = ["model", "in `transformers`", "positions", "llama.cpp against `transformers`", "ours against it",
               "ours, keys and values in F16 on both sides", "`transformers` in F32 and F64, the same"]
    rows = [
        [f"`{it.job.variant.name}`", f"`{transformers_models.family(it.job.variant)}`", it.positions,
         f"{it.between_references:.1e}", f"{it.as_is:.1e}", f"{it.one_cache:.1e}", f"{it.in_double:.1e}"]
        for it in exact
    ]
    print_table(columns, rows)
    types = {result.job.type_name: None for result in results if result not in exact}
    rows = []
    for kind in types:
        those = [result for result in results if result.job.type_name == kind]
        worst_one = max(those, key=lambda it: it.as_is / allowed_as_is(it.job))
        rows.append([kind, len(those), f"`{worst_one.job.variant.name}`", f"{worst_one.as_is:.1e}",
                     f"{allowed_as_is(worst_one.job):.1e}"])
    print("Other types, which `transformers` gets dequantized: the model that comes closest to what is allowed.\n")
    print_table(["type", "models", "model", "ours against `transformers`", "allowed"], rows)
    rows = [[f"`{change.variant}`", change.what, f"{error:.1e}"] for change, error in changes]
    print("One thing otherwise in `transformers`: ours, keys and values in F16 on both sides.\n")
    print_table(["model", "what", "error"], [row for row, it in zip(rows, changes) if it[0] not in DEFINED_OTHERWISE])
    print("What `transformers` and the models' own code define otherwise than llama.cpp, whose way is ours.\n")
    print_table(["model", "what", "error"], [row for row, it in zip(rows, changes) if it[0] in DEFINED_OTHERWISE])
    median, most = far
    print(f"With the numbers of OpenAI's files (base 150,000, 32 times 4,096 positions) rounding YaRN's bounds changes the\n"
          f"logits of the same random weights by {median:.1e} in the median of {FAR:,} positions. The worst has {most:.1e}: where\n"
          f"two experts are about as likely, it sends a row to the other one.")


def print_table(columns, rows):
    print("| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |")
    print()


if __name__ == "__main__":
    sys.exit(main())
