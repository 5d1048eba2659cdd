"""Good and bad checkpoints on disk."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

from engine.errors import CheckpointError, UnsupportedModelError
from engine.models import load_model
from engine.weights.checkpoint import open_checkpoint
from engine.weights.stored_tensor import dequantize
from tests.engine.models.gguf_export import write_gguf_model
from tests.engine.models.sequence_runner import SequenceRunner
from tests.engine.models.tiny_checkpoint import Case, random_prompt, write_checkpoint

CASE = Case("llama", LlamaConfig, {"tie_word_embeddings": False})
Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``single`` and ``sharded`` folders and ``model.gguf`` of one model."""
    root = tmp_path_factory.mktemp("checkpoints")
    model = write_checkpoint(CASE, root / "single")
    model.save_pretrained(root / "sharded", max_shard_size="100KB")
    write_gguf_model(model, root / "model.gguf")
    return root


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    """A copy of the single-file folder, to be damaged."""
    return Path(shutil.copytree(written / "single", tmp_path / "model"))


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def load(path: Path) -> None:
    load_model(open_checkpoint(str(path)), torch.float32)


@pytest.mark.parametrize("kind", ["sharded", "model.gguf"])
def test_every_format_gives_the_same_tensors(kind: str, written: Path) -> None:
    single = open_checkpoint(str(written / "single"))
    other = open_checkpoint(str(written / kind))
    for name, tensor in load_file(written / "single" / "model.safetensors").items():
        shape = tuple(tensor.shape)
        assert torch.equal(dequantize(other.tensor(name, shape), torch.float32), tensor)
        assert torch.equal(dequantize(single.tensor(name, shape), torch.float32), tensor)


def test_shards_were_written(written: Path) -> None:
    assert len(list((written / "sharded").glob("*.safetensors"))) > 2


@pytest.mark.parametrize("quantization", ["none", "q4"])
@pytest.mark.parametrize("name", ["single/model.safetensors", "model.gguf"])
def test_a_loaded_model_survives_changes_to_its_file(
    name: str, quantization: Literal["none", "q4"], written: Path, tmp_path: Path
) -> None:
    path = Path(shutil.copytree(written, tmp_path / "copy")) / name
    opened = path if path.suffix == ".gguf" else path.parent
    model = load_model(open_checkpoint(str(opened)), torch.float32, quantization)
    prompt = random_prompt(20)
    before = SequenceRunner(model).logits(prompt)
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 8)
        file.write(bytes(path.stat().st_size * 7 // 8))
    assert torch.equal(SequenceRunner(model).logits(prompt), before)


def test_the_digest_follows_the_content(written: Path, folder: Path) -> None:
    original = open_checkpoint(str(written / "single")).digest
    assert open_checkpoint(str(folder)).digest == original
    rewrite(folder, lambda tensors: tensors[Q_PROJ].mul_(2))
    assert open_checkpoint(str(folder)).digest != original


def test_the_digest_follows_the_configuration(written: Path, folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "rms_norm_eps": 0.5}))
    digest = open_checkpoint(str(written / "single")).digest
    assert open_checkpoint(str(folder)).digest != digest


@pytest.mark.parametrize("name", [Q_PROJ, "lm_head.weight", "model.norm.weight"])
def test_a_missing_tensor_is_named(name: str, folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.pop(name))
    with pytest.raises(CheckpointError, match=rf"model\.safetensors: tensor {name} is missing"):
        load(folder)


def test_a_tensor_of_another_shape_is_named(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.update({Q_PROJ: torch.zeros(64, 63)}))
    with pytest.raises(
        CheckpointError, match=rf"safetensors: tensor {Q_PROJ} has shape \(64, 63\).*\(64, 64\)"
    ):
        load(folder)


def test_a_tensor_of_an_unsupported_type_is_named(folder: Path) -> None:
    rewrite(folder, lambda t: t.update({Q_PROJ: torch.zeros(64, 64, dtype=torch.int8)}))
    with pytest.raises(CheckpointError, match=f"{Q_PROJ} is of type I8"):
        load(folder)


@pytest.mark.parametrize("size", [0, 5, 200], ids=["empty", "in length", "in header"])
def test_a_file_cut_in_its_header_is_named(size: int, folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is (not a usable|empty)"):
        load(folder)


def test_a_file_cut_in_its_data_names_the_tensor(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(CheckpointError, match=r"model\.safetensors .*tensor model\.\S+ lies bey"):
        load(folder)


def test_a_missing_shard_is_named(written: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(written / "sharded", tmp_path / "model"))
    shard = sorted(folder.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(CheckpointError, match=shard.name):
        load(folder)


def test_a_tensor_that_its_shard_lacks_is_named(written: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(written / "sharded", tmp_path / "model"))
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    shard = folder / index["weight_map"][Q_PROJ]
    tensors = load_file(shard)
    del tensors[Q_PROJ]
    save_file(tensors, shard)
    with pytest.raises(CheckpointError, match=f"{shard.name}: tensor {Q_PROJ} is missing"):
        load(folder)


def test_an_index_cannot_reach_outside_its_folder(written: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(written / "sharded", tmp_path / "model"))
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"][Q_PROJ] = "../model-00001.safetensors"
    path.write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="outside the folder"):
        load(folder)


@pytest.mark.parametrize("content", ["", "{", "[]", "\xff"], ids=["empty", "cut", "list", "text"])
def test_a_broken_config_is_named(content: str, folder: Path) -> None:
    (folder / "config.json").write_text(content, encoding="latin-1")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load(folder)


def test_a_folder_without_a_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        load(tmp_path)


def test_a_folder_without_weights_is_named(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="holds neither"):
        load(folder)


def test_a_path_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere: no such file"):
        load(tmp_path / "nowhere")


def test_a_gguf_without_a_tensor_names_it(written: Path, tmp_path: Path) -> None:
    content = (written / "model.gguf").read_bytes()
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(content.replace(b"blk.1.attn_q.weight", b"blk.9.attn_q.weight"))
    with pytest.raises(CheckpointError, match=r"damaged\.gguf: tensor blk\.1\.attn_q\.weight"):
        load(damaged)


def test_a_gguf_of_another_architecture_lists_the_supported_ones(
    written: Path, tmp_path: Path
) -> None:
    content = (written / "model.gguf").read_bytes()
    other = tmp_path / "other.gguf"
    other.write_bytes(content.replace(b"llama", b"mamba"))
    with pytest.raises(UnsupportedModelError, match=r"mamba is not supported.*llama, qwen2, qwen3"):
        load(other)
