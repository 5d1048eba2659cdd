from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.philox import Words, philox4x32_10, token_words
from tests.engine.plain_sampling import plain_philox

# Random123's kat_vectors, "philox4x32 10": counter, key, expected.
KNOWN_ANSWERS = {
    "zeros": (
        (0x00000000, 0x00000000, 0x00000000, 0x00000000),
        (0x00000000, 0x00000000),
        (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    ),
    "ones": (
        (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF),
        (0xFFFFFFFF, 0xFFFFFFFF),
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    "pi": (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
}
EACH_ANSWER = pytest.mark.parametrize(
    ("counter", "key", "expected"), KNOWN_ANSWERS.values(), ids=KNOWN_ANSWERS.keys()
)


def columns(rows: Sequence[tuple[int, ...]]) -> Words:
    return np.array(rows, dtype=np.uint64).T


def words_of(seed: int, choice: int, position: int, groups: NDArray[np.int64]) -> Words:
    """Where all groups are of one choice and position."""
    seeds, choices, positions = np.array([[seed], [choice], [position]], dtype=np.uint64)
    return token_words(seeds, choices, positions, groups)


@EACH_ANSWER
def test_known_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    words = columns([counter])
    philox4x32_10(words, columns([key]))
    assert words[:, 0].tolist() == list(expected)


@EACH_ANSWER
def test_known_answers_of_the_plain_twin(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    assert plain_philox(counter, key) == expected


@pytest.mark.parametrize("num_keys", [1, 300], ids=["one key", "a key each"])
def test_many_counters_at_once_equal_each_alone(num_keys: int) -> None:
    random = np.random.default_rng(0)
    counters = [tuple(row) for row in random.integers(0, 1 << 32, (300, 4)).tolist()]
    keys = [tuple(row) for row in random.integers(0, 1 << 32, (num_keys, 2)).tolist()]
    together = columns(counters)
    philox4x32_10(together, columns(keys))
    for number, (words, counter) in enumerate(zip(together.T.tolist(), counters, strict=True)):
        assert tuple(words) == plain_philox(counter, keys[number % num_keys])


def test_four_tokens_share_a_counter() -> None:
    """Token 4 * 900 + 2 has word 2 of the counter (900, position, choice, 0)."""
    words = words_of(0x0123456789ABCDEF, 3, 41, np.array([5, 900]))
    assert words.shape == (4, 2)
    expected = plain_philox((900, 41, 3, 0), (0x89ABCDEF, 0x01234567))
    assert tuple(words[:, 1].tolist()) == expected


def test_each_group_may_be_of_its_own_choice() -> None:
    where: list[tuple[int, ...]] = [((1 << 64) - 1, 0, 7), (0, 15, 7), (1 << 40, 2, 1 << 20)]
    groups = np.array([3, 3, 4])
    seeds, choices, positions = columns(where)
    together = token_words(seeds, choices, positions, groups)
    for place, group in enumerate(groups):
        seed, choice, position = where[place]
        alone = words_of(seed, choice, position, np.array([group]))
        assert np.array_equal(together[:, [place]], alone)


def test_words_differ_in_each_of_seed_choice_position_and_token() -> None:
    drawn = {
        word
        for seed in (0, 1, 1 << 32, (1 << 64) - 1)
        for choice in range(4)
        for position in (0, 1, 2, 1 << 20)
        for word in words_of(seed, choice, position, np.arange(2)).reshape(-1).tolist()
    }
    assert len(drawn) == 4 * 4 * 4 * 8


@pytest.mark.parametrize("along", ["position", "token"])
def test_words_are_evenly_spread(along: str) -> None:
    """Chi-square over 20 bins; 43.8 is its 0.1 % point at 19 degrees of freedom."""
    if along == "position":
        words = np.array([words_of(77, 0, place, np.array([9]))[1, 0] for place in range(4000)])
    else:
        words = words_of(77, 0, 5, np.arange(1000)).reshape(-1)
    counts, _ = np.histogram(words, bins=20, range=(0, 1 << 32))
    assert ((counts - 200.0) ** 2 / 200).sum() < 43.8
