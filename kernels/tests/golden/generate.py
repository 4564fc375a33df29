"""Writes what the `gguf` Python package (ggml's own layouts) makes of random blocks.

    pip install gguf && python kernels/tests/golden/generate.py

Files of blocks of bytes and then their elements as little-endian f32: four blocks of every type with scales
as models have them, of quantized types seven with the extreme ones, and of types with a grid as many as name
every entry of it.
"""

import pathlib

import gguf
import numpy as np

BLOCKS = 4
# Where the F16 fields of a block lie: random bits there would be infinities and NaNs.
HALVES = {
    "F16": [0], "Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "F32": [], "BF16": [],
    "Q2_K": [80, 82], "Q3_K": [108], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": [],
    "IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0], "IQ3_XXS": [0], "IQ3_S": [0],
}
# Of types with a grid, its entries.
GRIDS = {"IQ2_XXS": 256, "IQ2_XS": 512, "IQ2_S": 1024, "IQ3_XXS": 256, "IQ3_S": 512}
# Of F16 the largest, the smallest and zeros, of MXFP4 the first and last exponents.
EXTREME_HALVES = [65504, -65504, 2.0**-24, -(2.0**-24), 2.0**-14, 0.0, -0.0]
EXTREME_EXPONENTS = [0, 1, 2, 127, 253, 254, 255]


def with_every_code(name, blocks):
    """As many blocks as name every entry of the grid once, in order."""
    low, high = 2, 66
    codes = np.arange(GRIDS[name], dtype=np.uint16).reshape(len(blocks), 8, -1)
    if name == "IQ2_XXS":
        blocks[:, low:].reshape(-1, 8, 8)[:, :, :4] = codes
    elif name == "IQ2_XS":
        both = blocks[:, low:high].copy().view(np.uint16) & ~np.uint16(511) | codes.reshape(len(blocks), -1)
        blocks[:, low:high] = both.view(np.uint8)
    else:
        blocks[:, low : low + codes[0].size] = codes.reshape(len(blocks), -1) & 255
    if name in ("IQ2_S", "IQ3_S"):
        bits = 8 // codes.shape[2]
        places = bits * np.arange(codes.shape[2])
        blocks[:, high : high + 8] = ((codes >> 8) << places).sum(axis=2)


def write(path, blocks, ty, elements):
    with np.errstate(over="ignore"):
        values = gguf.dequantize(blocks.reshape(1, -1), ty).astype("<f4").reshape(-1)
    assert values.size == len(blocks) * elements and not np.isnan(values).any()
    path.write_bytes(blocks.tobytes() + values.tobytes())


noise = np.random.default_rng(2026)
for name, halves in HALVES.items():
    ty = gguf.GGMLQuantizationType[name]
    elements, size = gguf.GGML_QUANT_SIZES[ty]
    blocks = noise.integers(0, 256, (BLOCKS, size), dtype=np.uint8)
    for at in halves:
        blocks[:, at : at + 2] = noise.normal(0, 0.1, (BLOCKS, 1)).astype(np.float16).view(np.uint8)
    if name == "F32":
        blocks = noise.normal(0, 1, (BLOCKS, 1)).astype(np.float32).view(np.uint8)
    if name == "BF16":
        blocks[:, 1] = 0x3F
    if name == "MXFP4":
        blocks[:, 0] = noise.integers(115, 128, BLOCKS)
    folder = pathlib.Path(__file__).parent
    write(folder / f"dequantize_{name}.bin", blocks, ty, elements)
    if elements == 1:
        continue
    if name in GRIDS:
        a_block = 64 if name.startswith("IQ3") else 32
        blocks = noise.integers(0, 256, (GRIDS[name] // a_block, size), dtype=np.uint8)
        blocks[:, :2] = np.array([0.01], dtype=np.float16).view(np.uint8)
        with_every_code(name, blocks)
        write(folder / f"grid_{name}.bin", blocks, ty, elements)
    extreme = np.random.default_rng(int(ty))
    blocks = extreme.integers(0, 256, (len(EXTREME_HALVES), size), dtype=np.uint8)
    for n, at in enumerate(halves):
        values = np.roll(np.array(EXTREME_HALVES, dtype=np.float16), n)
        blocks[:, at : at + 2] = values.reshape(-1, 1).view(np.uint8)
    if name == "MXFP4":
        blocks[:, 0] = EXTREME_EXPONENTS
    write(folder / f"extreme_{name}.bin", blocks, ty, elements)
