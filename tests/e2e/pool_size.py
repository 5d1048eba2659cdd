"""How large KV pools of the tests' model are."""

BLOCK_SIZE = 16
# SmolLM2-135M in float32: layers, K and V, KV heads, tokens, head size, bytes.
BLOCK_BYTES = 30 * 2 * 3 * BLOCK_SIZE * 64 * 4


def pool_of(num_blocks: int) -> tuple[str, str]:
    """The flags of a worker with so many blocks; the sink is one more."""
    return "--kv-memory-bytes", str((num_blocks + 1) * BLOCK_BYTES)
