"""Random blocks of each tensor type, with scales that keep the weights near ±0.03.

That is what a matrix of a trained model looks like from a kernel's point of view: nothing is
zero, nothing overflows, and activations neither die out nor explode.
"""

import functools
import random
import struct

"""name: number in the format, values a block, bytes a block"""
TYPES = {
    "F32": (0, 1, 4),
    "F16": (1, 1, 2),
    "Q5_0": (6, 32, 22),
    "Q8_0": (8, 32, 34),
    "Q4_K": (12, 256, 144),
    "Q6_K": (14, 256, 210),
    "MXFP4": (39, 32, 17),
}
PATTERN_BYTES = 16 << 20
"""More than any matrix of a type of long blocks has: as many blocks in a pattern, and each row begins at another one. With
fewer, tokens far apart in a vocabulary would have the same weights, and the same logits."""
MOST_ROWS = 160_000
SEED = 20261121


@functools.cache
def pattern(name):
    """As many blocks as a prime number says."""
    size = TYPES[name][2]
    count = prime_from(max(PATTERN_BYTES // size, MOST_ROWS))
    raw = bytearray(random.Random(f"{SEED} {name}").randbytes(count * size))
    SHAPERS[name](raw, size, count)
    return bytes(raw)


def f16(raw, size, count):
    """The upper byte is sign, exponent and two bits of fraction: 2⁻⁷ to 2⁻⁴, the middle octave
    twice as often."""
    exponents = [8, 9, 9, 10]
    upper = bytes((b & 0x80) | exponents[b >> 5 & 3] << 2 | (b & 3) for b in range(256))
    raw[1::size] = bytes(raw[1::size]).translate(upper)


def f32(raw, size, count):
    """Sign, and the exponent of 2⁻⁶."""
    raw[3::size] = bytes(b & 0x80 | 60 for b in raw[3::size])
    raw[2::size] = bytes(b | 0x80 for b in raw[2::size])


def q5_0(raw, size, count):
    put(raw, size, count, 0, 0.0032)


def q8_0(raw, size, count):
    put(raw, size, count, 0, 0.0004)


def q4_k(raw, size, count):
    """w = d * scale * q - dmin * m, all drawn evenly: dmin is 7.5 d, so that the mean is zero."""
    put(raw, size, count, 0, 1.18e-4)
    put(raw, size, count, 2, 7.5 * 1.18e-4)


def q6_k(raw, size, count):
    """Behind the 192 bytes of codes are 16 signed scales, kept within ±32."""
    narrow = bytes(((b & 63) - 32) & 255 for b in range(256))
    for at in range(192, 208):
        raw[at::size] = bytes(raw[at::size]).translate(narrow)
    put(raw, size, count, 208, 8.7e-5)


def mxfp4(raw, size, count):
    """The first byte is the exponent of a power of two, 2⁻⁷ of those behind it."""
    raw[0::size] = bytes([120]) * count


SHAPERS = {
    "F32": f32, "F16": f16, "Q5_0": q5_0, "Q8_0": q8_0, "Q4_K": q4_k, "Q6_K": q6_k, "MXFP4": mxfp4,
}


def put(raw, size, count, at, number):
    """The same half-precision number in every block."""
    low, high = struct.pack("<e", number)
    raw[at::size] = bytes([low]) * count
    raw[at + 1 :: size] = bytes([high]) * count


def prime_from(bound):
    while any(bound % divisor == 0 for divisor in range(2, int(bound**0.5) + 1)):
        bound += 1
    return bound


def nbytes(name, cols, rows):
    _, values, size = TYPES[name]
    assert cols % values == 0, f"{cols} values are no whole blocks of {name}"
    return cols // values * size * rows
