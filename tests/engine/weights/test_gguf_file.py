"""Tensors of GGUF files against the gguf library's own dequantisation."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from engine.errors import CheckpointError
from engine.weights.gguf_file import GgufFile, SkippedStrings
from engine.weights.stored_tensor import dequantize

KINDS = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0", "Q5_0"]


def write_gguf(path: Path, tensors: dict[str, tuple[np.ndarray, str]]) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_token_list(["a", "ü", "…"])
    writer.add_float32("llama.rope.freq_base", 5.0)
    writer.add_array("llama.numbers", [3, 1, 2])
    for name, (values, kind_name) in tensors.items():
        kind = gguf.GGMLQuantizationType[kind_name]
        writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def values() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(6, 64)).astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_every_type_dequantizes_as_the_library_does(
    kind: str, values: np.ndarray, tmp_path: Path
) -> None:
    file = GgufFile(str(write_gguf(tmp_path / "m.gguf", {"w": (values, kind)})))
    kind_value = gguf.GGMLQuantizationType[kind]
    expected = gguf.dequantize(gguf.quantize(values, kind_value), kind_value)
    actual = dequantize(file.tensor("w"), torch.float32)
    np.testing.assert_allclose(actual.numpy(), expected.reshape(6, 64), rtol=0, atol=1e-6)


def test_metadata_is_read_and_the_vocabulary_skipped(values: np.ndarray, tmp_path: Path) -> None:
    file = GgufFile(str(write_gguf(tmp_path / "m.gguf", {"w": (values, "F32")})))
    assert file.metadata["general.architecture"] == "llama"
    assert file.metadata["llama.rope.freq_base"] == 5.0
    assert file.metadata["llama.numbers"] == (3, 1, 2)
    assert isinstance(file.metadata["tokenizer.ggml.tokens"], SkippedStrings)
    assert file.indices_of("tokenizer.ggml.tokens", {"no such token"}) == frozenset()
    assert file.indices_of("no.such.key", {"a"}) == frozenset()


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.95], ids=["in header", "in index", "in tensor"])
def test_a_truncated_file_is_named(keep: float, values: np.ndarray, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "cut.gguf", {"weight.a": (values, "F32")})
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])
    with pytest.raises(CheckpointError, match=r"cut\.gguf is not a usable GGUF file"):
        GgufFile(str(path))


def test_a_truncated_tensor_is_named(values: np.ndarray, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "cut.gguf", {"weight.a": (values, "F32")})
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(CheckpointError, match=r"cut\.gguf.*weight\.a"):
        GgufFile(str(path))


@pytest.mark.parametrize("content", [b"", b"GGU", b"PK\3\4 not a model", b"GGUF\x09\0\0\0"])
def test_a_file_of_another_format_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="not a usable GGUF file"):
        GgufFile(str(path))
