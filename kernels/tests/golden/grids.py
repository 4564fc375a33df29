"""Writes `kernels/src/reference/dequantize/grids.rs` from the grids of the `gguf` Python package.

    pip install gguf && python kernels/tests/golden/grids.py && cargo fmt
"""

import pathlib

from gguf import quants

TARGET = pathlib.Path(__file__).parents[2] / "src/reference/dequantize/grids.rs"
HEADER = """\
//! The grids of the IQ2 and IQ3 types: which eight (IQ2) or four (IQ3) values a code stands for.
//!
//! `iq2xxs_grid` and its siblings in `ggml-common.h`, each value by its number among the type's levels:
//! two bits a value of IQ2, three of IQ3, the first value lowest. Written by
//! `kernels/tests/golden/grids.py`; every entry is tested against the `gguf` package.
"""
BITS = {"IQ2_XXS": 2, "IQ2_XS": 2, "IQ2_S": 2, "IQ3_XXS": 3, "IQ3_S": 3}

parts = [HEADER]
for name, bits in BITS.items():
    kind = getattr(quants, name)
    kind.init_grid()
    number = {level: n for n, level in enumerate(kind.grid_map)}
    rows = kind.grid.reshape(kind.grid_shape)
    packed = [sum(number[int(v)] << bits * i for i, v in enumerate(row)) for row in rows]
    entries = ", ".join(f"0x{entry:04X}" for entry in packed)
    parts.append(f"pub static {name}: [u16; {len(packed)}] = [{entries}];\n")
TARGET.write_text("\n".join(parts))
