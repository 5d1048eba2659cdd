"""A model on disk, whatever its format."""

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property

import numpy as np
import torch

from engine.config import ModelConfig
from engine.errors import CheckpointError
from engine.weights.stored_tensor import StoredTensor
from modelfiles.checkpoint_digest import checkpoint_digest
from modelfiles.errors import ModelFileError
from modelfiles.tensor_file import TensorFile


class Checkpoint(ABC):
    """Weights and configuration; tensors go by their Hugging Face names in every format.

    Opening reads only headers. ``tensor`` may share memory with the mapped file: who keeps it
    makes a copy.
    """

    path: str
    config: ModelConfig
    # By the name of a tensor in its own format.
    files: Mapping[str, TensorFile]

    @abstractmethod
    def tensor(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        """The named tensor. Raises CheckpointError if it is missing or has another shape."""

    @cached_property
    def digest(self) -> bytes:
        """What tells it from other checkpoints; see ``checkpoint_digest``."""
        return checkpoint_digest(json.dumps(asdict(self.config), sort_keys=True), self.files)

    def _raw(self, name: str) -> torch.Tensor:
        """The bytes of a tensor, (num_bytes,) uint8, shared with the mapped file."""
        return torch.from_numpy(np.frombuffer(self.files[name].raw(name), dtype=np.uint8))


def open_checkpoint(path: str) -> Checkpoint:
    """Opens a GGUF file or a Hugging Face folder (config.json and safetensors).

    Raises CheckpointError naming the file (and tensor) that cannot be used, and
    UnsupportedModelError for an architecture or feature that Baton does not run.
    """
    try:
        if os.path.isdir(path):
            from engine.weights.hf_checkpoint import HfCheckpoint

            return HfCheckpoint(path)
        if os.path.isfile(path):
            from engine.weights.gguf_checkpoint import GgufCheckpoint

            return GgufCheckpoint(path)
    except ModelFileError as error:
        raise CheckpointError(str(error)) from error
    raise CheckpointError(f"{path}: no such file or folder")
