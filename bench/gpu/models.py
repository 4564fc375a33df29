"""Models of true shapes with random weights: `models.py SHAPE TYPE FILE`.

Types as llama.cpp's converter would write them: "Q4_K_M" mixes Q4_K with Q6_K, and falls back to
Q5_0 and Q8_0 where a row is no multiple of 256, as in all of Qwen2.5-0.5B but its ffn_down.
"MXFP4_MOE" has experts in MXFP4 and the rest in Q8_0, as the published files of gpt-oss.
Needs nothing but Python. The weights are the same every time.
"""

import argparse
import json
import math
import random
import struct
import time
from dataclasses import dataclass, replace

import blocks
import gguf_file
import vocabulary


@dataclass(frozen=True)
class Shape:
    name: str
    arch: str
    layers: int
    width: int
    ff: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    """The output matrix is the embedding."""
    tied: bool
    """Positions."""
    context: int
    rope_base: float
    epsilon: float
    """Experts, those that a token uses, and their width; without them there is a dense part of `ff`."""
    experts: int = 0
    used: int = 0
    expert_ff: int = 0
    """Positions that queries of every second layer see, and how many times the original context the context is: gpt-oss."""
    window: int = 0
    yarn: float = 0.0


SHAPES = {
    "0.5b": Shape(
        "Qwen2.5-0.5B", "qwen2", 24, 896, 4864, 14, 2, 64, 151_936, True, 32_768, 1e6, 1e-6
    ),
    "7b": Shape(
        "Qwen2.5-7B", "qwen2", 28, 3584, 18_944, 28, 4, 128, 152_064, False, 131_072, 1e6, 1e-6
    ),
    "8b": Shape(
        "Llama-3.1-8B", "llama", 32, 4096, 14_336, 32, 8, 128, 128_256, False, 131_072, 5e5, 1e-5
    ),
    "30b-a3b": Shape(
        "Qwen3-30B-A3B", "qwen3moe", 48, 2048, 6144, 32, 4, 128, 151_936, False, 40_960, 1e6, 1e-6,
        128, 8, 768,
    ),
    "gpt-oss-20b": Shape(
        "gpt-oss-20b", "gpt-oss", 24, 2880, 2880, 64, 8, 64, 201_088, False, 131_072, 1.5e5, 1e-5,
        32, 4, 2880, window=128, yarn=32.0,
    ),
}
"""Whose queries, keys and values have biases."""
BIASED = ("qwen2", "gpt-oss")
"""Whose every other part has a bias too, and whose heads have sinks."""
BIASED_ALL = ("gpt-oss",)
"""Whose heads of queries and keys have norms."""
NORMED_HEADS = ("qwen3moe",)
TYPES = ["F16", "Q8_0", "Q4_K_M", "MXFP4_MOE"]


def has(shape, kind):
    """True where there are files of this shape and kind."""
    return kind != "MXFP4_MOE" or shape.experts > 0


def type_of(tensor, shape, kind, layer, cols):
    """The type of a matrix in a file of this kind."""
    if tensor == "ffn_gate_inp":
        return "F32"
    if kind == "MXFP4_MOE":
        return "MXFP4" if tensor.endswith("_exps") else "Q8_0"
    if kind != "Q4_K_M":
        return kind
    is_output = tensor == "output" or (tensor == "token_embd" and shape.tied)
    is_delicate = tensor in ("attn_v", "ffn_down", "ffn_down_exps") and gets_more_bits(layer, shape.layers)
    wanted = "Q6_K" if is_output or is_delicate else "Q4_K"
    if cols % 256 == 0:
        return wanted
    return {"Q6_K": "Q8_0", "Q4_K": "Q5_0"}[wanted]


def gets_more_bits(layer, layers):
    """llama.cpp's `use_more_bits`: the first and last eighth, and every third between."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def tensors(shape, kind):
    q, kv = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    random_numbers = random.Random(shape.name)
    found = []

    def matrix(name, cols, rows, layer=0, zero_rows=0, experts=(), ty=None):
        """Of each of so many experts, if there are any."""
        ty = ty or type_of(name.split(".")[-2], shape, kind, layer, cols)
        number, _, block = blocks.TYPES[ty]
        pattern = blocks.pattern(ty)
        # Each begins elsewhere, so that no matrix is another one's beginning.
        start = (len(found) * 7919 * block) % len(pattern)
        all_rows = rows * math.prod(experts)
        found.append(gguf_file.Tensor(
            name, (cols, rows, *experts), number, blocks.nbytes(ty, cols, all_rows), pattern, start,
            blocks.nbytes(ty, cols, zero_rows),
        ))

    def vector(name, numbers):
        raw = struct.pack(f"<{len(numbers)}f", *numbers)
        found.append(gguf_file.Tensor(name, (len(numbers),), 0, len(raw), raw))

    def noise(count):
        return [random_numbers.gauss(0, 0.1) for _ in range(count)]

    # Tokens that are half a character or mean the end get rows of zeros, so that none is drawn:
    # every token of an answer is a piece of text.
    silent = vocabulary.SILENT
    matrix("token_embd.weight", shape.width, shape.vocabulary, zero_rows=silent)
    if not shape.tied:
        matrix("output.weight", shape.width, shape.vocabulary, zero_rows=silent)
    vector("output_norm.weight", [1.0] * shape.width)
    for layer in range(shape.layers):
        own = f"blk.{layer}."
        vector(own + "attn_norm.weight", [1.0] * shape.width)
        norm = "post_attention_norm" if shape.arch == "gpt-oss" else "ffn_norm"
        vector(f"{own}{norm}.weight", [1.0] * shape.width)
        for name, rows in (("attn_q", q), ("attn_k", kv), ("attn_v", kv)):
            matrix(f"{own}{name}.weight", shape.width, rows, layer)
            if shape.arch in BIASED:
                vector(f"{own}{name}.bias", noise(rows))
        matrix(own + "attn_output.weight", q, shape.width, layer)
        if shape.arch in BIASED_ALL:
            vector(own + "attn_output.bias", noise(shape.width))
            vector(own + "attn_sinks.weight", noise(shape.heads))
            vector(own + "ffn_gate_inp.bias", noise(shape.experts))
        if shape.arch in NORMED_HEADS:
            vector(own + "attn_q_norm.weight", [1.0] * shape.head_size)
            vector(own + "attn_k_norm.weight", [1.0] * shape.head_size)
        ff, kind_of_part, experts = shape.ff, "", ()
        if shape.experts:
            matrix(own + "ffn_gate_inp.weight", shape.width, shape.experts, layer)
            ff, kind_of_part, experts = shape.expert_ff, "_exps", (shape.experts,)
        for name, cols, rows in (("gate", shape.width, ff), ("up", shape.width, ff), ("down", ff, shape.width)):
            matrix(f"{own}ffn_{name}{kind_of_part}.weight", cols, rows, layer, experts=experts)
            if shape.arch in BIASED_ALL:
                matrix(f"{own}ffn_{name}{kind_of_part}.bias", rows, shape.experts, ty="F32")
    return found


def metadata(shape, kind):
    arch = shape.arch
    return {
        "general.architecture": arch,
        "general.name": f"random {shape.name} {kind}",
        f"{arch}.block_count": shape.layers,
        f"{arch}.context_length": shape.context,
        f"{arch}.embedding_length": shape.width,
        f"{arch}.feed_forward_length": shape.ff,
        f"{arch}.attention.head_count": shape.heads,
        f"{arch}.attention.head_count_kv": shape.kv_heads,
        f"{arch}.attention.key_length": shape.head_size,
        f"{arch}.attention.value_length": shape.head_size,
        f"{arch}.attention.layer_norm_rms_epsilon": shape.epsilon,
        f"{arch}.rope.dimension_count": shape.head_size,
        f"{arch}.rope.freq_base": shape.rope_base,
        **({
            f"{arch}.expert_count": shape.experts,
            f"{arch}.expert_used_count": shape.used,
            f"{arch}.expert_feed_forward_length": shape.expert_ff,
        } if shape.experts else {}),
        **({f"{arch}.attention.sliding_window": shape.window} if shape.window else {}),
        **({
            f"{arch}.rope.scaling.type": "yarn",
            f"{arch}.rope.scaling.factor": shape.yarn,
            f"{arch}.rope.scaling.original_context_length": int(shape.context / shape.yarn),
        } if shape.yarn else {}),
        **vocabulary.metadata(shape.vocabulary),
    }


def generate(shape, kind, path):
    began = time.monotonic()
    gguf_file.write(path, metadata(shape, kind), tensors(shape, kind))
    seconds = time.monotonic() - began
    return {"seconds": round(seconds, 2), **gguf_file.facts(path)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("type", choices=TYPES)
    parser.add_argument("file")
    parser.add_argument("--layers", type=int, help="fewer than the shape has, for a test")
    parser.add_argument("--vocabulary", type=int, help="fewer than the shape has, for a test")
    parser.add_argument("--experts", type=int, help="fewer than the shape has, for a test")
    arguments = parser.parse_args()
    shape = SHAPES[arguments.shape]
    if not has(shape, arguments.type):
        parser.error(f"{arguments.type} is for experts, which {arguments.shape} has not")
    if arguments.experts and not shape.used <= arguments.experts <= shape.experts:
        parser.error(f"--experts of {arguments.shape} are {shape.used} to {shape.experts}")
    shape = replace(
        shape,
        layers=arguments.layers or shape.layers,
        vocabulary=arguments.vocabulary or shape.vocabulary,
        experts=arguments.experts or shape.experts,
    )
    print(json.dumps(generate(shape, arguments.type, arguments.file)))


if __name__ == "__main__":
    main()
