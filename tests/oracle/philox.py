"""Philox4x32-10, written from the paper (Salmon et al., "Parallel Random Numbers: As Easy as
1, 2, 3", SC 2011), and the number in [0, 1) that a token is drawn with."""

_MASK = 0xFFFFFFFF


def philox4x32(counter, key):
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        low, high = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (high >> 32) ^ c1 ^ k0, high & _MASK, (low >> 32) ^ c3 ^ k1, low & _MASK
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return c0, c1, c2, c3


# Known answers of the Random123 distribution: a generator that fails them proves nothing.
assert philox4x32((0, 0, 0, 0), (0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
assert philox4x32((_MASK,) * 4, (_MASK,) * 2) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)


def uniform(seed, position):
    low, high, _, _ = philox4x32((position, 0, 0, 0), (seed & _MASK, seed >> 32))
    return (((high << 32) | low) >> 11) / (1 << 53)
