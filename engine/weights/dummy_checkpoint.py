"""Random weights in the shape of a real model, for measuring."""

from pathlib import Path

import torch

from engine.weights.checkpoint import Checkpoint
from engine.weights.hf_config import config_from_hf
from engine.weights.stored_tensor import StoredTensor
from modelfiles.model_folder import read_json

_STD = 0.02


class DummyCheckpoint(Checkpoint):
    """Takes config.json of a folder; every tensor is drawn on ``device`` when it is asked for."""

    def __init__(self, path: str, device: torch.device) -> None:
        config = Path(path) / "config.json"
        self.path = path
        self.config = config_from_hf(str(config), read_json(config))
        self.files = {}
        self._generator = torch.Generator(device).manual_seed(0)

    def tensor(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        if "norm" in name:
            return torch.ones(shape, dtype=torch.bfloat16, device=self._generator.device)
        return torch.randn(
            shape, dtype=torch.bfloat16, generator=self._generator, device=self._generator.device
        ).mul_(_STD)
