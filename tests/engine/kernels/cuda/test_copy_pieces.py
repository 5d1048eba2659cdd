"""Pieces of memory copied by address."""

from collections.abc import Callable, Sequence

import pytest
import torch

from engine.kernels.cuda.copy_pieces import copy_pieces, copy_pieces_torch

NUM_BYTES = 1 << 18

Copy = Callable[[torch.Tensor, int, int], None]


@pytest.fixture(params=["kernel", "twin"])
def copy(request: pytest.FixtureRequest, device: torch.device) -> Copy:
    if request.param == "twin" and device.type != "cpu":
        pytest.skip("the twin copies host memory")
    return copy_pieces if request.param == "kernel" else copy_pieces_torch


def random_bytes(seed: int, device: torch.device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (NUM_BYTES,), dtype=torch.uint8, generator=generator).to(device)


def copied(
    copy: Copy, spans: Sequence[tuple[int, int, int]], num_programs: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """What ``copy`` makes of ``spans`` (source offset, destination offset, bytes), and should."""
    source, target = random_bytes(0, device), random_bytes(1, device)
    expected = target.clone()
    for from_, to, num_bytes in spans:
        expected[to : to + num_bytes] = source[from_ : from_ + num_bytes]
    first, last = source.data_ptr(), target.data_ptr()
    rows = [(first + from_, last + to, num_bytes) for from_, to, num_bytes in spans]
    pieces = torch.tensor(rows, dtype=torch.int64).to(device)
    copy(pieces, max(num_bytes for *_, num_bytes in spans), num_programs)
    return target, expected


@pytest.mark.parametrize(
    "spans",
    [
        [(0, 16, 16)],
        [(160, 0, 16 << 10), (64 << 10, 128 << 10, 16 << 10)],
        [(32, 48, (16 << 10) + 16), (128 << 10, 100 << 10, 16 << 10)],
        [(0, 16 << 10, 16), (1 << 10, 2 << 10, 40 << 10), (64 << 10, 64 << 10, 4096)],
    ],
    ids=["one load", "whole chunks", "a tail of one load", "of different sizes"],
)
@pytest.mark.parametrize("num_programs", [1, 3, 64])
def test_pieces_arrive_and_nothing_beside_them_changes(
    copy: Copy, spans: list[tuple[int, int, int]], num_programs: int, device: torch.device
) -> None:
    target, expected = copied(copy, spans, num_programs, device)
    assert torch.equal(target, expected)


def test_heads_of_a_block_go_where_another_number_of_ranks_keeps_them(
    copy: Copy, device: torch.device
) -> None:
    """Parts of blocks of 8 KiB, the second half of each, into blocks of half the size."""
    blocks = [(5, 3), (0, 9), (11, 4)]
    spans = [(there * 8192 + 4096, here * 4096, 4096) for there, here in blocks]
    target, expected = copied(copy, spans, 2, device)
    assert torch.equal(target, expected)
