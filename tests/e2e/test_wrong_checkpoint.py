"""A service with a wrong checkpoint ends at start, and names the file and the tensor, once."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.e2e.service_process import running_service
from tests.e2e.tiny_model import write_tiny_model
from tests.engine.models.gguf_export import write_gguf_model
from tests.engine.models.tiny_checkpoint import CASES, write_checkpoint

Tensors = dict[str, torch.Tensor]
FILE = "model.safetensors"
TENSOR = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(write_tiny_model(tmp_path_factory.mktemp("good") / "tiny"))


def changed(good: Path, tmp_path: Path, change: Callable[[Tensors], object]) -> Path:
    """A copy whose tensors ``change`` has had."""
    folder = Path(shutil.copytree(good, tmp_path / "tiny"))
    tensors = load_file(folder / FILE)
    change(tensors)
    save_file(tensors, folder / FILE)
    return folder


def truncated(path: Path, num_bytes: int) -> None:
    path.write_bytes(path.read_bytes()[:-num_bytes])


def refusal(module: str, model: Path) -> str:
    """What the service says when it ends, which must be one line."""
    with running_service(module, "--model", str(model)) as service:
        assert service.wait_exit() == 1
    (line,) = service.log
    assert "ERROR" in line and "cannot start" in line
    return line


@pytest.mark.parametrize("module", ["prefill_svc", "gateway"])
def test_truncated_safetensors(module: str, good: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(good, tmp_path / "tiny"))
    truncated(folder / FILE, 10)
    line = refusal(module, folder)
    assert line.count(f"{folder / FILE} is not a usable safetensors file: tensor model.norm.w") == 1


def test_a_missing_tensor(good: Path, tmp_path: Path) -> None:
    folder = changed(good, tmp_path, lambda tensors: tensors.pop(TENSOR))
    line = refusal("decode_svc", folder)
    assert line.count(f"{folder / FILE}: tensor {TENSOR} is missing") == 1


def test_a_tensor_of_another_shape(good: Path, tmp_path: Path) -> None:
    folder = changed(good, tmp_path, lambda t: t.update({TENSOR: torch.zeros(64, 63)}))
    line = refusal("prefill_svc", folder)
    assert (
        line.count(f"{folder / FILE}: tensor {TENSOR} has shape (64, 63), expected (64, 64)") == 1
    )


def test_a_truncated_gguf(tmp_path: Path) -> None:
    model = write_checkpoint(CASES[0], tmp_path / "folder")
    path = write_gguf_model(model, tmp_path / "tiny.gguf")
    truncated(path, 10)
    line = refusal("decode_svc", path)
    assert f"{path} is not a usable GGUF file: tensor " in line
    assert "lies beyond the end of the file (truncated?)" in line
