"""The packed layouts of torch's int4 GEMM."""

import pytest
import torch

from engine.kernels.int4_layout import Int4Layout, int4_layout

LAYOUTS = [Int4Layout(64, True), Int4Layout(32, True), Int4Layout(32, False)]


def random_nibbles(num_rows: int, num_columns: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(16, (num_rows, num_columns), generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize(("num_rows", "num_columns"), [(64, 32), (192, 96), (1024, 64)])
def test_packs_as_torch_does(num_rows: int, num_columns: int) -> None:
    nibbles = random_nibbles(num_rows, num_columns)
    expected = torch._convert_weight_to_int4pack_for_cpu(nibbles.int(), 1)
    assert torch.equal(int4_layout().pack(nibbles), expected)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_gathered_rows_are_those_packed(layout: Int4Layout) -> None:
    nibbles = random_nibbles(192, 32)
    # The first and last row of a block, both halves, repeats, any order.
    rows = torch.tensor([191, 0, 1, 15, 16, 31, 32, 33, 63, 64, 64, 100])
    assert torch.equal(layout.gather_rows(layout.pack(nibbles), rows), nibbles[rows])


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_joined_blocks_are_columns_of_rows(layout: Int4Layout) -> None:
    nibbles = random_nibbles(192, 32)
    blocks = layout.blocks(layout.pack(nibbles))
    joined = layout.join(blocks & 15, blocks >> 4)
    assert torch.equal(joined, nibbles.view(-1, layout.block_rows, 32).transpose(1, 2))
