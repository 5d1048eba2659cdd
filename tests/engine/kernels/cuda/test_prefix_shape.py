"""Which kernel attends to shared prefixes, and how it is laid out."""

import subprocess
import sys

import pytest
import torch

from engine.kernels.cuda.prefix_shape import TILE_UNIT, PrefixShape, prefix_shape

HOPPER = (9, 0)


def shape_of(
    capability: tuple[int, int] = HOPPER,
    *,
    head_dim: int = 128,
    block_size: int = 16,
    dtype: torch.dtype = torch.bfloat16,
) -> PrefixShape:
    pool = torch.empty(1, 8, 2, block_size, head_dim, dtype=dtype, device="meta")
    return prefix_shape(capability, pool)


@pytest.mark.parametrize("head_dim", [64, 128])
def test_hopper_has_a_kernel_of_its_own(head_dim: int) -> None:
    assert shape_of(head_dim=head_dim).specialized


def test_what_that_kernel_does_not_cover_goes_to_the_general_one() -> None:
    assert not shape_of(head_dim=80).specialized
    assert not shape_of(head_dim=256).specialized
    assert not shape_of(block_size=8).specialized
    assert not shape_of(block_size=48).specialized
    assert not shape_of(dtype=torch.float16).specialized
    assert not shape_of(dtype=torch.float32).specialized


@pytest.mark.parametrize("capability", [(0, 0), (8, 0), (8, 9), (10, 0), (12, 0)])
def test_other_gpus_never_choose_it(capability: tuple[int, int]) -> None:
    assert not shape_of(capability).specialized


@pytest.mark.parametrize("capability", [(8, 0), HOPPER, (10, 0), (12, 0)])
@pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_prefixes_end_at_whole_tiles_of_every_layout(
    capability: tuple[int, int], head_dim: int, dtype: torch.dtype
) -> None:
    assert TILE_UNIT % shape_of(capability, head_dim=head_dim, dtype=dtype).tile == 0


def test_gluon_is_imported_only_where_its_kernel_is_chosen() -> None:
    """A Triton without it serves everything else."""
    code = (
        "import sys; import engine.attention.cascade, engine.gpu.rehearsal;"
        "print([name for name in sys.modules if name.startswith('triton.experimental')])"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert output.strip() == "[]"
