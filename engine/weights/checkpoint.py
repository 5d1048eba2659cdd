"""A model on disk, whatever its format."""

import hashlib
import os
from abc import ABC, abstractmethod
from functools import cached_property

from engine.config import ModelConfig
from engine.errors import CheckpointError
from engine.weights.stored_tensor import StoredTensor

# A tensor's share of the digest.
SAMPLE_BYTES = 256


class Checkpoint(ABC):
    """Weights and configuration; tensors go by their Hugging Face names in every format.

    Opening reads only headers. ``tensor`` may share memory with the mapped file: who keeps it
    makes a copy.
    """

    path: str
    config: ModelConfig

    @abstractmethod
    def tensor(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        """The named tensor. Raises CheckpointError if it is missing or has another shape."""

    @abstractmethod
    def fingerprints(self) -> list[bytes]:
        """One line a stored tensor: name, type, shape and some bytes from its middle."""

    @cached_property
    def digest(self) -> str:
        """Hex sha256 over configuration, tensor index and sampled bytes; cheap at any size."""
        digest = hashlib.sha256(repr(self.config).encode())
        for line in sorted(self.fingerprints()):
            digest.update(len(line).to_bytes(8, "little") + line)
        return digest.hexdigest()


def open_checkpoint(path: str) -> Checkpoint:
    """Opens a GGUF file or a Hugging Face folder (config.json and safetensors).

    Raises CheckpointError naming the file (and tensor) that cannot be used, and
    UnsupportedModelError for an architecture or feature that Baton does not run.
    """
    if os.path.isdir(path):
        from engine.weights.hf_checkpoint import HfCheckpoint

        return HfCheckpoint(path)
    if os.path.isfile(path):
        from engine.weights.gguf_checkpoint import GgufCheckpoint

        return GgufCheckpoint(path)
    raise CheckpointError(f"{path}: no such file or folder")
