"""Random numbers that are a function of where they are used: Philox4x32-10, in plain integers.

Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_WEYL = 0x9E3779B9, 0xBB67AE85
_MASK = 0xFFFFFFFF


def philox4x32_10(
    counter: tuple[int, int, int, int], key: tuple[int, int]
) -> tuple[int, int, int, int]:
    """Four 32-bit words for four counter words under a key of two words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        product0, product1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (product1 >> 32) ^ c1 ^ k0,
            product1 & _MASK,
            (product0 >> 32) ^ c3 ^ k1,
            product0 & _MASK,
        )
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, choice: int, position: int) -> float:
    """The draw for the token at ``position`` of a choice (rule 6.1): 53 bits in [0, 1)."""
    key = seed & _MASK, seed >> 32 & _MASK
    high, low, _, _ = philox4x32_10((position & _MASK, position >> 32, choice, 0), key)
    return ((high >> 5) * (1 << 26) + (low >> 6)) / (1 << 53)
