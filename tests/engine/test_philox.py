import pytest

from engine.philox import philox4x32_10, uniform

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


@pytest.mark.parametrize(
    ("counter", "key", "expected"), KNOWN_ANSWERS.values(), ids=KNOWN_ANSWERS.keys()
)
def test_known_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    assert philox4x32_10(counter, key) == expected


def test_uniform_is_made_of_27_bits_of_one_word_and_26_of_the_next() -> None:
    high, low, _, _ = philox4x32_10((41, 0, 3, 0), (0x89ABCDEF, 0x01234567))
    bits = format(high, "032b")[:27] + format(low, "032b")[:26]
    assert uniform(0x0123456789ABCDEF, 3, 41) == int(bits, 2) / 2**53


def test_uniform_differs_in_each_of_seed_choice_and_position() -> None:
    draws = {
        uniform(seed, choice, position)
        for seed in (0, 1, 1 << 32, (1 << 64) - 1)
        for choice in range(4)
        for position in (0, 1, 2, 1 << 33)
    }
    assert len(draws) == 4 * 4 * 4
    assert all(0.0 <= draw < 1.0 for draw in draws)


def test_uniform_is_evenly_spread() -> None:
    """Chi-square over 20 bins; 43.8 is its 0.1 % point at 19 degrees of freedom."""
    counts = [0] * 20
    for position in range(4000):
        counts[int(uniform(77, 0, position) * 20)] += 1
    assert sum((count - 200) ** 2 / 200 for count in counts) < 43.8
