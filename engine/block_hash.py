"""Names of full KV blocks: chained 128-bit hashes of the tokens up to and including a block."""

import hashlib
from array import array
from collections.abc import Sequence

HASH_BYTES = 16


def hash_blocks(
    token_ids: Sequence[int], block_size: int, salt: bytes = b"", known: Sequence[bytes] = ()
) -> list[bytes]:
    """One hash per full block of ``token_ids``; a partial last block has none.

    Equal hashes mean equal tokens from position 0 on under the same salt, so one lookup a block
    finds the longest shared prefix. ``known`` are the hashes of the first blocks, where the caller
    has them already; they are not computed again.
    """
    hashes = list(known)
    parent = hashes[-1] if hashes else hashlib.blake2b(salt, digest_size=HASH_BYTES).digest()
    for start in range(len(hashes) * block_size, len(token_ids) - block_size + 1, block_size):
        tokens = array("q", token_ids[start : start + block_size]).tobytes()
        parent = hashlib.blake2b(parent + tokens, digest_size=HASH_BYTES).digest()
        hashes.append(parent)
    return hashes
