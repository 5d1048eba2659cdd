"""What is foretold of weights, against what a loaded model takes."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.models import load_model
from engine.parallel.group import Group
from engine.weights.shape_checkpoint import ShapeCheckpoint
from engine.weights.weight_bytes import weight_bytes
from tests.engine.attention_cases import make_model

FLAGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tied": {"tie_word_embeddings": True},
    "biases": {"attention_bias": True, "attention_output_bias": True, "mlp_bias": True},
    "head norms": {"qk_norm": True},
    "tied, of an odd vocabulary": {"tie_word_embeddings": True, "vocab_size": 63},
}


class Rank(Group):
    """As much of a group as loading asks for: the first of two ranks."""

    def __init__(self) -> None:
        self.rank, self.size = 0, 2


@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS.keys())
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_it_is_what_the_loaded_model_takes(flags: dict[str, Any], num_ranks: int) -> None:
    config = replace(make_model(), **flags)
    model = load_model(
        ShapeCheckpoint(config),
        torch.bfloat16,
        device=torch.device("meta"),
        group=None if num_ranks == 1 else Rank(),
    )
    assert weight_bytes(config, 2, num_ranks) == model.resident_bytes()
