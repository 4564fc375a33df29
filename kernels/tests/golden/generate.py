"""Writes what the `gguf` Python package (ggml's own layouts) makes of random blocks.

    pip install gguf && python kernels/tests/golden/generate.py

One file a type: four blocks of bytes, then their elements as little-endian f32.
"""

import pathlib

import gguf
import numpy as np

BLOCKS = 4
# Where the F16 fields of a block lie: random bits there would be infinities and NaNs.
HALVES = {
    "F16": [0], "Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "F32": [], "BF16": [],
}

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
    values = gguf.dequantize(blocks.reshape(1, -1), ty).astype("<f4").reshape(-1)
    assert values.size == BLOCKS * elements and np.isfinite(values).all()
    path = pathlib.Path(__file__).parent / f"dequantize_{name}.bin"
    path.write_bytes(blocks.tobytes() + values.tobytes())
