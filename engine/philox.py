"""Random words that are a function of where they are used: Philox4x32-10 over numpy arrays.

Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Words: TypeAlias = NDArray[np.uint64]

TOKENS_PER_GROUP = 4

_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = 0x9E3779B9, 0xBB67AE85
_MASK = 0xFFFFFFFF
_LOW = np.uint64(_MASK)
_HALF = np.uint64(32)


def philox4x32_10(
    counter: tuple[Words, Words, Words, Words], key: tuple[int, int]
) -> tuple[Words, Words, Words, Words]:
    """Four 32-bit words for each four counter words, under a key of two words.

    Arrays broadcast: what all counters have in common is an array of one element. Words are held
    in 64 bits, which the product of two of them needs.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (product1 >> _HALF) ^ (c1 ^ np.uint64(k0)),
            product1 & _LOW,
            (product0 >> _HALF) ^ (c3 ^ np.uint64(k1)),
            product0 & _LOW,
        )
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def token_words(
    seed: int, choice: int, position: int, groups: NDArray[np.int64]
) -> NDArray[np.uint32]:
    """The words (groups, 4) of the tokens that stand at ``position`` of a choice (rule 6.1).

    Token t belongs to group t >> 2 and has word t & 3 of the counter (t >> 2, position, choice, 0)
    under the key (low half of the seed, high half).
    """
    position_word, choice_word, zero = np.array([[position], [choice], [0]], dtype=np.uint64)
    counter = groups.astype(np.uint64), position_word, choice_word, zero
    words = np.empty((groups.size, TOKENS_PER_GROUP), dtype=np.uint32)
    for place, word in enumerate(philox4x32_10(counter, (seed & _MASK, seed >> 32))):
        words[:, place] = word
    return words
