import numpy as np
import pytest

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


def columns(counters: list[tuple[int, int, int, int]]) -> tuple[Words, Words, Words, Words]:
    c0, c1, c2, c3 = np.array(counters, dtype=np.uint64).T
    return c0, c1, c2, c3


@EACH_ANSWER
def test_known_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    words = philox4x32_10(columns([counter]), key)
    assert [int(word[0]) for word in words] == list(expected)


@EACH_ANSWER
def test_known_answers_of_the_plain_twin(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    assert plain_philox(counter, key) == expected


def test_many_counters_at_once_equal_each_alone() -> None:
    random = np.random.default_rng(0)
    counters = [tuple(row) for row in random.integers(0, 1 << 32, (300, 4)).tolist()]
    key = 0x89ABCDEF, 0x01234567
    together = np.stack(philox4x32_10(columns(counters), key), axis=-1).tolist()
    assert [tuple(row) for row in together] == [plain_philox(each, key) for each in counters]


def test_what_counters_share_may_be_given_once() -> None:
    counters = [(number, 41, 3, 0) for number in range(20)]
    c0, c1, c2, c3 = columns(counters)
    shared = philox4x32_10((c0, c1[:1], c2[:1], c3[:1]), (7, 8))
    for word, expected in zip(shared, philox4x32_10(columns(counters), (7, 8)), strict=True):
        assert np.array_equal(word, expected)


def test_four_tokens_share_a_counter() -> None:
    """Token 4 * 900 + 2 has word 2 of the counter (900, position, choice, 0)."""
    words = token_words(0x0123456789ABCDEF, 3, 41, np.array([5, 900]))
    assert words.shape == (2, 4)
    assert words.dtype == np.uint32
    expected = plain_philox((900, 41, 3, 0), (0x89ABCDEF, 0x01234567))
    assert tuple(words[1].tolist()) == expected


def test_words_differ_in_each_of_seed_choice_position_and_token() -> None:
    drawn = {
        word
        for seed in (0, 1, 1 << 32, (1 << 64) - 1)
        for choice in range(4)
        for position in (0, 1, 2, 1 << 20)
        for word in token_words(seed, choice, position, np.arange(2)).reshape(-1).tolist()
    }
    assert len(drawn) == 4 * 4 * 4 * 8


@pytest.mark.parametrize("along", ["position", "token"])
def test_words_are_evenly_spread(along: str) -> None:
    """Chi-square over 20 bins; 43.8 is its 0.1 % point at 19 degrees of freedom."""
    if along == "position":
        words = np.array([token_words(77, 0, place, np.array([9]))[0, 1] for place in range(4000)])
    else:
        words = token_words(77, 0, 5, np.arange(1000)).reshape(-1)
    counts, _ = np.histogram(words, bins=20, range=(0, 1 << 32))
    assert ((counts - 200.0) ** 2 / 200).sum() < 43.8
