"""A Hugging Face folder as a Checkpoint."""

import json
import os
from typing import Any

from engine.config import ModelConfig
from engine.errors import CheckpointError
from engine.weights.checkpoint import SAMPLE_BYTES, Checkpoint
from engine.weights.hf_config import config_from_hf
from engine.weights.safetensors_file import SafetensorsFile
from engine.weights.stored_tensor import StoredTensor

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


class HfCheckpoint(Checkpoint):
    """config.json with either model.safetensors or an index of shards."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.config: ModelConfig = config_from_hf(
            os.path.join(path, "config.json"),
            _read_json(os.path.join(path, "config.json")),
            _read_json(os.path.join(path, "generation_config.json"), optional=True),
        )
        self._files = self._open_files()

    def _open_files(self) -> dict[str, SafetensorsFile]:
        """The file of each tensor name."""
        index = os.path.join(self.path, _INDEX)
        if os.path.exists(index):
            return self._open_shards(index)
        single = os.path.join(self.path, _SINGLE)
        if not os.path.exists(single):
            raise CheckpointError(f"{self.path} holds neither {_SINGLE} nor {_INDEX}")
        file = SafetensorsFile(single)
        return dict.fromkeys(file.entries, file)

    def _open_shards(self, index: str) -> dict[str, SafetensorsFile]:
        weight_map = _read_json(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise CheckpointError(f"{index} has no weight_map")
        shards: dict[str, SafetensorsFile] = {}
        for name, shard in weight_map.items():
            if os.path.basename(shard) != shard:
                raise CheckpointError(f"{index}: tensor {name} is in {shard}, outside the folder")
            if shard not in shards:
                shards[shard] = SafetensorsFile(os.path.join(self.path, shard))
            if name not in shards[shard].entries:
                raise CheckpointError(f"{shards[shard].path}: tensor {name} is missing")
        return {name: shards[shard] for name, shard in weight_map.items()}

    def tensor(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        if name not in self._files:
            raise CheckpointError(f"{self.path}: tensor {name} is missing")
        file = self._files[name]
        if file.entries[name].shape != shape:
            raise CheckpointError(
                f"{file.path}: tensor {name} has shape {file.entries[name].shape}, expected {shape}"
            )
        return file.tensor(name)

    def fingerprints(self) -> list[bytes]:
        lines = []
        for name, file in self._files.items():
            entry, raw = file.entries[name], file.raw(name)
            middle = raw[len(raw) // 2 :][:SAMPLE_BYTES].numpy().tobytes()
            lines.append(f"{name} {entry.kind} {entry.shape} ".encode() + middle)
        return lines


def _read_json(path: str, *, optional: bool = False) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except FileNotFoundError as error:
        if optional:
            return {}
        raise CheckpointError(f"{path} is missing") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} does not hold a JSON object")
    return content
