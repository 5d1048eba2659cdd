"""What enters the prefix cache."""

from engine.block_hash import hash_blocks
from engine.block_manager import BlockManager
from engine.request import Request


class Prefixes:
    """Makes full blocks matchable. Engine thread only."""

    def __init__(self, blocks: BlockManager, block_size: int) -> None:
        self._blocks = blocks
        self._block_size = block_size

    def publish(self, request: Request, first_token: int, end_token: int) -> None:
        """Enters the blocks that tokens ``[first_token, end_token)`` filled: no later step writes
        them."""
        self.extend_hashes(request, end_token)
        for index in range(first_token // self._block_size, end_token // self._block_size):
            self._blocks.register(request.block_table[index], request.block_hashes[index])

    def extend_hashes(self, request: Request, num_tokens: int) -> None:
        """Hashes the full blocks of its first ``num_tokens`` that are not hashed yet."""
        num_full = num_tokens // self._block_size
        if num_full > len(request.block_hashes):
            request.block_hashes = hash_blocks(
                request.token_ids[: num_full * self._block_size],
                self._block_size,
                request.cache_salt,
                request.block_hashes,
            )
