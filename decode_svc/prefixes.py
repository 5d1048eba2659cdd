"""What a decode worker enters into its prefix cache."""

from engine.block_hash import hash_blocks
from engine.block_manager import BlockManager
from engine.request import Request


class Prefixes:
    """Makes full blocks matchable. Engine thread only."""

    def __init__(self, blocks: BlockManager, block_size: int) -> None:
        self._blocks = blocks
        self._block_size = block_size

    def publish(self, request: Request, first_token: int, end_token: int) -> None:
        """Enters the blocks that tokens ``[first_token, end_token)`` filled; their KV is there."""
        num_full = end_token // self._block_size
        if num_full > len(request.block_hashes):
            request.block_hashes = hash_blocks(
                request.token_ids[: num_full * self._block_size],
                self._block_size,
                request.cache_salt,
                request.block_hashes,
            )
        for index in range(first_token // self._block_size, num_full):
            self._blocks.register(request.block_table[index], request.block_hashes[index])
