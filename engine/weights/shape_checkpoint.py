"""Weights of a model's shapes, without data."""

import torch

from engine.config import ModelConfig
from engine.weights.checkpoint import Checkpoint
from engine.weights.stored_tensor import StoredTensor


class ShapeCheckpoint(Checkpoint):
    """Every tensor is on the device "meta", in bfloat16."""

    def __init__(self, config: ModelConfig) -> None:
        self.path = "shapes"
        self.config = config
        self.files = {}

    def tensor(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        return torch.empty(shape, dtype=torch.bfloat16, device="meta")
