"""Lists of what is to be copied: rows of source, destination, bytes."""

import numpy as np
import torch

from kvtransfer.transport.base import BlockPart
from kvtransfer.transport.local import LocalFabric, LocalTransport
from kvtransfer.transport.peer_memory import Pieces, equal_pieces


def pieces(*rows: tuple[int, int, int]) -> Pieces:
    return np.array(rows, dtype=np.int64)


def test_runs_of_blocks_are_cut_to_one_size() -> None:
    equal, size = equal_pieces(pieces((0, 1000, 200), (700, 300, 100), (400, 0, 300)))
    assert size == 100
    assert equal.tolist() == [
        [0, 1000, 100],
        [100, 1100, 100],
        [700, 300, 100],
        [400, 0, 100],
        [500, 100, 100],
        [600, 200, 100],
    ]


def test_one_run_stays_one_piece() -> None:
    equal, size = equal_pieces(pieces((16, 32, 4096)))
    assert (equal.tolist(), size) == ([[16, 32, 4096]], 4096)


def test_addresses_past_32_bits_are_kept() -> None:
    far = (1 << 46) + 16
    equal, _ = equal_pieces(pieces((far, far + (1 << 40), 64), (0, 1 << 41, 32)))
    assert equal.tolist()[:2] == [[far, far + (1 << 40), 32], [far + 32, far + (1 << 40) + 32, 32]]


def test_blocks_far_into_pools_of_many_gigabytes_are_found() -> None:
    size = 2 << 20
    pool = torch.empty((70_000, 1, size), dtype=torch.uint8, device="meta")
    transport = LocalTransport(pool, "large", LocalFabric())
    runs = np.array([(60_000, 65_000, 5_000)])
    whole = transport.byte_ranges(BlockPart(size, 0, 0, size), runs)
    assert whole.tolist() == [[60_000 * size, 65_000 * size, 5_000 * size]]
    half = transport.byte_ranges(BlockPart(2 * size, size, 0, size), runs)
    assert half[-1].tolist() == [64_999 * 2 * size + size, 69_999 * size, size]
