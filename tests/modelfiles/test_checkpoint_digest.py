"""Checkpoints are told apart by what is in their files."""

import json
from pathlib import Path

import pytest

from modelfiles.checkpoint_digest import NUM_PIECES, PIECE_BYTES, checkpoint_digest
from modelfiles.safetensors_file import SafetensorsFile

# Larger than what is looked at of it, and not a multiple of anything.
SIZE = NUM_PIECES * PIECE_BYTES * 10 + 1


def write(path: Path, tensors: dict[str, bytes], *, kind: str = "U8") -> Path:
    header: dict[str, object] = {}
    offset = 0
    for name, data in tensors.items():
        offsets = [offset, offset + len(data)]
        header[name] = {"dtype": kind, "shape": [len(data)], "data_offsets": offsets}
        offset += len(data)
    head = json.dumps(header).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + b"".join(tensors.values()))
    return path


def digest(path: Path, config: str = "{}") -> bytes:
    file = SafetensorsFile(str(path))
    return checkpoint_digest(config, dict.fromkeys(file.entries, file))


@pytest.fixture
def original(tmp_path: Path) -> bytes:
    return digest(write(tmp_path / "original", {"a": bytes(SIZE), "b": b"short"}))


@pytest.mark.parametrize("position", [0, SIZE - 1], ids=["first", "last"])
def test_a_tensor_is_looked_at_from_its_first_byte_to_its_last(
    position: int, original: bytes, tmp_path: Path
) -> None:
    data = bytearray(SIZE)
    data[position] = 1
    assert digest(write(tmp_path / "other", {"a": bytes(data), "b": b"short"})) != original


def test_a_tensor_that_went_on_in_training_is_another(original: bytes, tmp_path: Path) -> None:
    """A slight change of everything in one tensor, and of nothing else."""
    assert digest(write(tmp_path / "other", {"a": b"\1" * SIZE, "b": b"short"})) != original


def test_every_byte_of_a_small_tensor_counts(original: bytes, tmp_path: Path) -> None:
    for i in range(5):
        data = bytearray(b"short")
        data[i] += 1
        assert digest(write(tmp_path / "other", {"a": bytes(SIZE), "b": bytes(data)})) != original


@pytest.mark.parametrize(
    ("tensors", "kind", "config"),
    [
        pytest.param({"a": bytes(SIZE)}, "U8", "{}", id="missing tensor"),
        pytest.param({"a": bytes(SIZE), "c": b"short"}, "U8", "{}", id="name"),
        pytest.param({"a": bytes(SIZE), "b": b"short"}, "I8", "{}", id="type"),
        pytest.param({"a": bytes(SIZE + 1), "b": b"short"}, "U8", "{}", id="shape"),
        pytest.param({"a": bytes(SIZE), "b": b"short"}, "U8", '{"eps": 1}', id="configuration"),
    ],
)
def test_everything_about_a_checkpoint_counts(
    tensors: dict[str, bytes], kind: str, config: str, original: bytes, tmp_path: Path
) -> None:
    assert digest(write(tmp_path / "other", tensors, kind=kind), config) != original


def test_order_and_place_of_the_tensors_do_not_count(original: bytes, tmp_path: Path) -> None:
    assert digest(write(tmp_path / "other", {"b": b"short", "a": bytes(SIZE)})) == original
