"""A Hugging Face folder: its configuration, and the file of each tensor."""

import json
from pathlib import Path
from typing import Any

from modelfiles.errors import ModelFileError
from modelfiles.safetensors_file import SafetensorsFile

SAFETENSORS_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


class ModelFolder:
    """config.json with either model.safetensors or an index of shards.

    ``files``: the file of each tensor, by the tensor's name. ``index``: the file that says which
    tensors there are.
    """

    def __init__(self, path: str) -> None:
        """Raises ModelFileError naming the file, and the tensor, that is missing or broken."""
        folder = Path(path)
        self.config = read_json(folder / "config.json")
        has_shards = (folder / SAFETENSORS_INDEX).is_file()
        self.index = folder / (SAFETENSORS_INDEX if has_shards else _SINGLE)
        self.files = _open_shards(folder) if has_shards else _open_single(folder)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises ModelFileError naming the file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelFileError(f"{path} is missing") from error
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ModelFileError(f"{path} is no JSON in UTF-8: {error}") from error
    if not isinstance(content, dict):
        raise ModelFileError(f"{path} does not hold a JSON object")
    return content


def weight_map(folder: Path) -> dict[str, str]:
    """The file of each tensor by the folder's index. Raises ModelFileError."""
    index = folder / SAFETENSORS_INDEX
    files = read_json(index).get("weight_map")
    if not isinstance(files, dict) or not files:
        raise ModelFileError(f"{index} has no weight_map")
    for tensor, name in files.items():
        if not isinstance(name, str) or Path(name).name != name:
            raise ModelFileError(f"{index}: tensor {tensor} is in {name}, outside the folder")
    return files


def _open_single(folder: Path) -> dict[str, SafetensorsFile]:
    if not (folder / _SINGLE).is_file():
        raise ModelFileError(f"{folder} holds neither {_SINGLE} nor {SAFETENSORS_INDEX}")
    file = SafetensorsFile(str(folder / _SINGLE))
    return dict.fromkeys(file.entries, file)


def _open_shards(folder: Path) -> dict[str, SafetensorsFile]:
    shards: dict[str, SafetensorsFile] = {}
    files = {}
    for tensor, name in weight_map(folder).items():
        if name not in shards:
            shards[name] = SafetensorsFile(str(folder / name))
        if tensor not in shards[name].entries:
            raise ModelFileError(f"{shards[name].path}: tensor {tensor} is missing")
        files[tensor] = shards[name]
    return files
