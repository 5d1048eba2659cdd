"""Tells from a few bytes whether files can be a model, without loading one."""

import json
from pathlib import Path

from chassis.errors import FailedPrecondition, ServiceError

GGUF_MAGIC = b"GGUF"
SAFETENSORS_INDEX = "model.safetensors.index.json"


def check_model(path: Path) -> None:
    """Raises FailedPrecondition (MODEL_INVALID) naming the file that is missing or broken.

    ``path`` is a GGUF file, or a Hugging Face folder: config.json, tokenizer.json and
    safetensors files of the length their headers state.
    """
    if path.is_dir():
        _check_folder(path)
    elif path.is_file():
        _check_gguf(path)
    else:
        raise invalid(f"{path} does not exist")


def invalid(message: str) -> ServiceError:
    """The error for files that are no usable model."""
    return FailedPrecondition(message, reason="MODEL_INVALID")


def weight_files(folder: Path) -> list[str]:
    """Names of the safetensors files of a folder's model, from its index if it has one."""
    index = folder / SAFETENSORS_INDEX
    if index.is_file():
        weights = _read_json(index).get("weight_map")
        if not isinstance(weights, dict) or not weights:
            raise invalid(f"{index} has no weight_map")
        return sorted({str(name) for name in weights.values()})
    return sorted(path.name for path in folder.glob("*.safetensors"))


def _check_folder(folder: Path) -> None:
    for name in ("config.json", "tokenizer.json"):
        if not (folder / name).is_file():
            raise invalid(f"{folder} has no {name}")
    if "architectures" not in _read_json(folder / "config.json"):
        raise invalid(f"{folder / 'config.json'} names no architectures")
    names = weight_files(folder)
    if not names:
        raise invalid(f"{folder} has no safetensors files")
    for name in names:
        _check_safetensors(folder / name)


def _check_gguf(path: Path) -> None:
    with path.open("rb") as file:
        if file.read(4) != GGUF_MAGIC:
            raise invalid(f"{path} is not a GGUF file")


def _check_safetensors(path: Path) -> None:
    """The file is an 8-byte header length, a JSON header with offsets, and the tensors' bytes."""
    if not path.is_file():
        raise invalid(f"{path} is missing")
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= size - 8:
            raise invalid(f"{path} is not a safetensors file, or truncated")
        header = _parse_json(file.read(length), path)
    expected = 8 + length + _data_length(header, path)
    if size != expected:
        raise invalid(f"{path} has {size} bytes, its header says {expected}: truncated?")


def _data_length(header: dict[str, object], path: Path) -> int:
    ends = [0]
    for key, entry in header.items():
        if key == "__metadata__":
            continue
        offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
        if not isinstance(offsets, list) or len(offsets) != 2:
            raise invalid(f"{path}: tensor {key} has no data_offsets")
        ends.append(int(offsets[1]))
    return max(ends)


def _read_json(path: Path) -> dict[str, object]:
    return _parse_json(path.read_bytes(), path)


def _parse_json(data: bytes, path: Path) -> dict[str, object]:
    try:
        parsed = json.loads(data)
    except ValueError as error:
        raise invalid(f"{path} is not valid JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise invalid(f"{path} holds no JSON object")
    return parsed
