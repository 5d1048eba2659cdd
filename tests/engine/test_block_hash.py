from engine.block_hash import HASH_BYTES, hash_blocks

TOKENS = list(range(100, 137))


def test_one_hash_of_128_bits_per_full_block() -> None:
    hashes = hash_blocks(TOKENS, 16)
    assert len(hashes) == 2
    assert all(len(value) == HASH_BYTES == 16 for value in hashes)
    assert hash_blocks(TOKENS[:15], 16) == []


def test_a_hash_covers_everything_before_the_block() -> None:
    changed = [*TOKENS]
    changed[3] += 1
    assert hash_blocks(TOKENS, 16)[1] != hash_blocks(changed, 16)[1]
    assert hash_blocks(TOKENS, 16) == hash_blocks([*TOKENS[:32], 5, 6], 16)


def test_equal_blocks_at_different_places_differ() -> None:
    first, second = hash_blocks([7] * 32, 16)
    assert first != second


def test_the_salt_separates_tenants() -> None:
    assert not set(hash_blocks(TOKENS, 16, b"a")) & set(hash_blocks(TOKENS, 16, b"b"))


def test_known_hashes_are_continued() -> None:
    known = hash_blocks(TOKENS[:20], 16, b"salt")
    assert hash_blocks(TOKENS, 16, b"salt", known) == hash_blocks(TOKENS, 16, b"salt")
