"""Layers without a product of matrices: a float32 row is the same bits among any others."""

from collections.abc import Callable, Iterator

import pytest
import torch

from engine.layers.linear import Linear
from engine.layers.mlp import SwiGluMlp
from engine.layers.rms_norm import RmsNorm
from engine.layers.rotary import Rotary
from tests.engine.attention_cases import make_model

# No multiple of a vector's length; all rows together are split between threads.
WIDTH, NUM_ROWS = 90, 1001


class Unchanged(Linear):
    """Gives what it is given."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def tensors(self) -> tuple[torch.Tensor, ...]:
        return ()


@pytest.fixture(params=[1, 3], ids=["1 thread", "3 threads"], autouse=True)
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def rotate(x: torch.Tensor) -> torch.Tensor:
    """Positions are a number of the row, so that they are the same in any company."""
    rotary = Rotary(make_model(head_dim=WIDTH), torch.float32)
    angles = rotary.angles((x[:, 0] * 1000).abs().long())
    return rotary.rotate(x.view(-1, 1, WIDTH).repeat(1, 3, 1), angles)


LAYERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "norm": RmsNorm(torch.linspace(0.5, 1.5, WIDTH), 1e-5),
    "activation": SwiGluMlp(Unchanged(), Unchanged()),
    "rotation": rotate,
}


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS.keys())
def test_a_row_is_the_same_bits_alone_and_among_others(
    layer: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    x = torch.randn(NUM_ROWS, WIDTH, generator=torch.Generator().manual_seed(0)) * 3
    together = layer(x)
    for length in (1, 2, 7, 340):
        for start in range(0, NUM_ROWS - length + 1, 97):
            rows = slice(start, start + length)
            assert torch.equal(layer(x[rows].clone()), together[rows])
