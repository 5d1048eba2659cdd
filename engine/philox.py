"""Random words that are a function of where they are used: Philox4x32-10 over numpy arrays.

Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Words: TypeAlias = NDArray[np.uint64]

TOKENS_PER_GROUP = 4

# Words are held in 64 bits, which the product of two of them needs.
_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], dtype=np.uint64)
_WEYL = np.array([[0x9E3779B9], [0xBB67AE85]], dtype=np.uint64)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox4x32_10(counters: Words, keys: Words) -> None:
    """Turns n counters (4, n) into four 32-bit words each, under keys (2, n), or (2, 1) for all.

    In place, and the keys are used up: fresh memory would cost more than the arithmetic.
    """
    # Words 0 and 2 go one way through a round, 1 and 3 the other.
    even, odd = counters[::2], counters[1::2]
    products = np.empty_like(even)
    swapped = products[::-1]
    for _ in range(10):
        np.multiply(even, _MULTIPLIERS, out=products)
        np.right_shift(swapped, _HALF, out=even)
        even ^= odd
        even ^= keys
        np.bitwise_and(swapped, _LOW, out=odd)
        keys += _WEYL
        keys &= _LOW


def token_words(seeds: Words, choices: Words, positions: Words, groups: NDArray[np.int64]) -> Words:
    """The words (4, groups) of the tokens that stand at a position of a choice (rule 6.1).

    Token t belongs to group t >> 2 and has word t & 3 of the counter (t >> 2, position, choice, 0)
    under the key (low half of the seed, high half). ``seeds``, ``choices`` and ``positions`` have
    one element for each group, or one for all.
    """
    words = np.empty((TOKENS_PER_GROUP, groups.size), dtype=np.uint64)
    words[0], words[1], words[2], words[3] = groups, positions, choices, 0
    philox4x32_10(words, np.stack((seeds & _LOW, seeds >> _HALF)))
    return words
