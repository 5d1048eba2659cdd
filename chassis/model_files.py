"""Tells from the headers of files whether they can be a model, without loading one."""

from pathlib import Path

from chassis.errors import FailedPrecondition
from modelfiles.errors import ModelFileError
from modelfiles.model_folder import ModelFolder, weight_map


def check_model(path: Path) -> None:
    """Raises FailedPrecondition (MODEL_INVALID) naming the file, and the tensor, that is broken.

    ``path`` is a GGUF file, or a Hugging Face folder: config.json, tokenizer.json and safetensors
    files.
    """
    try:
        if path.is_dir():
            _check_folder(path)
        elif path.is_file():
            # Late: the gguf library takes longer than all else that a command may import.
            from modelfiles.gguf_file import GgufFile

            GgufFile(str(path))
        else:
            raise ModelFileError(f"{path} does not exist")
    except ModelFileError as error:
        raise FailedPrecondition(str(error), reason="MODEL_INVALID") from error


def weight_files(folder: Path) -> list[str]:
    """Names of the safetensors files by the folder's index. Raises FailedPrecondition."""
    try:
        return sorted(set(weight_map(folder).values()))
    except ModelFileError as error:
        raise FailedPrecondition(str(error), reason="MODEL_INVALID") from error


def _check_folder(path: Path) -> None:
    folder = ModelFolder(str(path))
    if "architectures" not in folder.config:
        raise ModelFileError(f"{path / 'config.json'} names no architectures")
    if not (path / "tokenizer.json").is_file():
        raise ModelFileError(f"{path / 'tokenizer.json'} is missing")
