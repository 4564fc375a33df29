"""A small model with the shape of a large one: `padded.py SMALL SHAPE FILE`.

Speculation depends on the text that a model writes, and on the cost of its steps. Random weights have the cost of a
large model but write no text, and a large model with real weights is not always at hand. The padded model writes the text
of the small one (llama architecture, its embeddings tied) at the cost of the large shape:

- The residual stream of the small model is the beginning of the padded one, and the rest of it is zero: embeddings, and rows
  of the matrices that write to it (`attn_output`, `ffn_down`), are padded with zeros.
- Columns that are multiplied with those zeros, heads that `attn_output` ignores and units that `ffn_down` ignores have random weights.
- RMSNorm divides by the root of the mean of squares, which has more members now: `w' = w √(n/n')`, `ε' = ε n/n'`.
- Layers behind the last real one write zeros.

Matrices are Q4_K, the embeddings and the output Q8_0. Needs numpy and gguf from PyPI.
"""

import argparse
from dataclasses import dataclass

import blocks
import gguf
import numpy as np

Q4_K, Q8_0 = gguf.GGMLQuantizationType.Q4_K, gguf.GGMLQuantizationType.Q8_0
SEED = 20261130


@dataclass(frozen=True)
class Shape:
    layers: int
    width: int
    ff: int
    heads: int
    kv_heads: int


SHAPES = {"7b": Shape(32, 4096, 14_336, 48, 16), "0.5b": Shape(30, 1024, 4864, 12, 4)}


class Small:
    """The model to pad."""

    def __init__(self, path):
        self.reader = gguf.GGUFReader(path)
        self.tensors = {tensor.name: tensor for tensor in self.reader.tensors}
        assert self.number("general.architecture") == "llama"
        assert "output.weight" not in self.tensors, "the embeddings are not tied"
        self.layers = self.number("llama.block_count")
        self.width = self.number("llama.embedding_length")
        self.ff = self.number("llama.feed_forward_length")
        self.heads = self.number("llama.attention.head_count")
        self.kv_heads = self.number("llama.attention.head_count_kv")
        self.epsilon = self.number("llama.attention.layer_norm_rms_epsilon")
        self.head_size = self.width // self.heads

    def number(self, key):
        return self.reader.fields[key].contents()

    def values(self, name):
        """As [rows, columns]."""
        tensor = self.tensors[name]
        return gguf.quants.dequantize(tensor.data, tensor.tensor_type)


def q4_k(values):
    """Blocks of [n, 256] values: 8 scales and minima of 6 bits, 4 bits a value (llama.cpp, `block_q4_K`)."""
    parts = values.reshape(-1, 8, 32)
    least = np.minimum(parts.min(2), 0.0)
    steps = (parts.max(2) - least) / 15
    d, d_least = (np.float16(x.max(1, keepdims=True) / 63) for x in (steps, -least))

    def six_bits(x, unit):
        unit = np.float32(unit)
        return np.rint(np.divide(x, unit, where=unit > 0, out=np.zeros_like(x))).clip(0, 63).astype(np.uint8)

    scales, minima = six_bits(steps, d), six_bits(-least, d_least)
    step = (np.float32(d) * scales)[..., None]
    shifted = parts + (np.float32(d_least) * minima)[..., None]
    codes = np.rint(np.divide(shifted, step, where=step > 0, out=np.zeros_like(parts))).clip(0, 15).astype(np.uint8)
    low, high = slice(0, 4), slice(4, 8)
    packed = np.concatenate([
        scales[:, low] | scales[:, high] >> 4 << 6,
        minima[:, low] | minima[:, high] >> 4 << 6,
        scales[:, high] & 15 | (minima[:, high] & 15) << 4,
    ], 1)
    pairs = codes.reshape(-1, 4, 2, 32)
    nibbles = (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(-1, 128)
    return np.concatenate([d.view(np.uint8), d_least.view(np.uint8), packed, nibbles], 1)


def random_blocks(kind, rows, blocks_a_row):
    size = blocks.TYPES[kind][2]
    pattern = np.frombuffer(blocks.pattern(kind), np.uint8).reshape(-1, size)
    return pattern[np.arange(rows * blocks_a_row) % len(pattern)].reshape(rows, blocks_a_row, size)


def matrix(real, rows, cols, is_random):
    """Q4_K of [rows, cols], which begins with `real`. The rest is random, or zero."""
    count, used = real.shape
    wide = -(-used // 256)
    real = np.pad(real, ((0, 0), (0, wide * 256 - used)))
    if is_random:
        padded = random_blocks("Q4_K", rows, cols // 256).copy()
    else:
        padded = np.zeros((rows, cols // 256, 144), np.uint8)
    padded[:count, :wide] = q4_k(real.reshape(-1, 256)).reshape(count, wide, 144)
    return padded.reshape(rows, -1)


def embeddings(real, cols, is_random):
    """Q8_0 of [tokens, cols], likewise."""
    rows, wide = real.shape[0], real.shape[1] // 32
    if is_random:
        padded = random_blocks("Q8_0", rows, cols // 32).copy()
    else:
        padded = np.zeros((rows, cols // 32, 34), np.uint8)
    padded[:, :wide] = gguf.quants.quantize(real, Q8_0).reshape(rows, wide, 34)
    return padded.reshape(rows, -1)


class Padded:
    def __init__(self, small, shape, noise):
        self.small, self.shape, self.noise = small, shape, noise
        self.random = np.random.default_rng(SEED)
        assert shape.heads // shape.kv_heads == small.heads // small.kv_heads, "queries of a head of keys"

    def norm(self, name):
        small, width = self.small, self.shape.width
        scaled = small.values(name) * np.sqrt(np.float32(small.width / width))
        return np.pad(scaled, (0, width - small.width)).astype(np.float32)

    def real(self, name):
        """Values of the small model's matrix, with noise."""
        values = self.small.values(name)
        noise = self.random.standard_normal(values.shape, np.float32)
        return values + self.noise * values.std(1, keepdims=True) * noise

    def tensors(self):
        """Name, values, type (none for F32)."""
        small, shape = self.small, self.shape
        embedded = small.values("token_embd.weight")
        yield "token_embd.weight", embeddings(embedded, shape.width, False), Q8_0
        yield "output.weight", embeddings(embedded, shape.width, True), Q8_0
        yield "output_norm.weight", self.norm("output_norm.weight"), None
        q, kv = shape.heads * small.head_size, shape.kv_heads * small.head_size
        for layer in range(shape.layers):
            source = layer if layer < small.layers else 0
            for norm in ("attn_norm", "ffn_norm"):
                yield f"blk.{layer}.{norm}.weight", self.norm(f"blk.{source}.{norm}.weight"), None
            for name, rows, cols, is_random in (
                ("attn_q", q, shape.width, True),
                ("attn_k", kv, shape.width, True),
                ("attn_v", kv, shape.width, True),
                ("attn_output", shape.width, q, False),
                ("ffn_gate", shape.ff, shape.width, True),
                ("ffn_up", shape.ff, shape.width, True),
                ("ffn_down", shape.width, shape.ff, False),
            ):
                real = self.real(f"blk.{source}.{name}.weight")
                if layer >= small.layers and not is_random:
                    real = np.zeros_like(real)
                yield f"blk.{layer}.{name}.weight", matrix(real, rows, cols, is_random), Q4_K

    def write(self, path):
        small, shape = self.small, self.shape
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_name(f"{small.number('general.name')}, padded to {shape.width} by {shape.layers}")
        writer.add_block_count(shape.layers)
        writer.add_context_length(small.number("llama.context_length"))
        writer.add_embedding_length(shape.width)
        writer.add_feed_forward_length(shape.ff)
        writer.add_head_count(shape.heads)
        writer.add_head_count_kv(shape.kv_heads)
        writer.add_key_length(small.head_size)
        writer.add_value_length(small.head_size)
        writer.add_rope_dimension_count(small.head_size)
        writer.add_rope_freq_base(small.number("llama.rope.freq_base"))
        writer.add_layer_norm_rms_eps(small.epsilon * small.width / shape.width)
        for field in small.reader.fields.values():
            if field.name.startswith("tokenizer."):
                kind = field.types[0]
                inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
                writer.add_key_value(field.name, field.contents(), kind, inner)
        for name, values, kind in self.tensors():
            writer.add_tensor(name, values, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("small")
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("file")
    parser.add_argument("--noise", type=float, default=0.0, help="deviation of noise on the matrices, of that of their rows")
    options = parser.parse_args()
    Padded(Small(options.small), SHAPES[options.shape], options.noise).write(options.file)


if __name__ == "__main__":
    main()
