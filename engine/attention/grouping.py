"""Which decoding sequences attend together."""

from engine.batch import ForwardBatch
from engine.kv_cache import KvCache

# A group's gathered K and V should stay in the processor's cache until they are used.
MAX_GROUP_BYTES = 8 << 20
# A sequence joins a group of longer ones where at least this share of its padded place is its own,
# or where the whole group is so small that padding costs less than another group's calls.
MIN_FILL = 0.75
SMALL_GROUP_BYTES = 1 << 20


def group_decoding(
    batch: ForwardBatch, kv_cache: KvCache, window: int | None, tile_size: int
) -> list[list[int]]:
    """Sequences that bring one token each, in groups of similar length.

    Every sequence of a group takes as many tiles of ``tile_size`` keys as the longest.
    """
    tile_bytes = kv_cache.block_bytes // kv_cache.num_layers // kv_cache.block_size * tile_size
    num_tiles = {
        sequence: -(-min(context_len + 1, window or context_len + 1) // tile_size)
        for sequence, context_len in enumerate(batch.context_lens)
        if batch.query_lens[sequence] == 1
    }
    groups: list[list[int]] = []
    longest = 0
    for sequence in sorted(num_tiles, key=lambda s: -num_tiles[s]):
        padded_bytes = (len(groups[-1]) + 1) * longest * tile_bytes if groups else 0
        similar = num_tiles[sequence] >= MIN_FILL * longest
        limit = MAX_GROUP_BYTES if similar else SMALL_GROUP_BYTES
        if not groups or padded_bytes > limit:
            groups.append([])
            longest = num_tiles[sequence]
        groups[-1].append(sequence)
    return groups
