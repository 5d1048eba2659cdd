"""A Hugging Face folder as a Checkpoint."""

import os

import torch

from engine.config import ModelConfig
from engine.errors import CheckpointError
from engine.weights.checkpoint import Checkpoint
from engine.weights.hf_config import config_from_hf
from engine.weights.stored_tensor import StoredTensor
from modelfiles.model_folder import ModelFolder

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class HfCheckpoint(Checkpoint):
    """config.json and safetensors files."""

    def __init__(self, path: str) -> None:
        self.path = path
        folder = ModelFolder(path)
        self.files = folder.files
        self._index = folder.index
        self.config: ModelConfig = config_from_hf(os.path.join(path, "config.json"), folder.config)

    def tensor(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        if name not in self.files:
            raise CheckpointError(f"{self._index}: tensor {name} is missing")
        file = self.files[name]
        entry = file.entries[name]
        if entry.shape != shape:
            raise CheckpointError(
                f"{file.path}: tensor {name} has shape {entry.shape}, expected {shape}"
            )
        if (dtype := _DTYPES.get(entry.kind)) is None:
            raise CheckpointError(
                f"{file.path}: tensor {name} is of type {entry.kind}; "
                f"supported: {', '.join(_DTYPES)}"
            )
        raw = self._raw(name)
        if entry.offset % dtype.itemsize:
            raw = raw.clone()
        return raw.view(dtype).view(entry.shape)
