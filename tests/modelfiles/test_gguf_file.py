"""Headers of GGUF files: what is read from good ones, and how bad ones are refused."""

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from modelfiles.errors import ModelFileError
from modelfiles.gguf_file import GgufFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with a value of every kind and a tensor, ``weight.a``, of 4 by 64."""
    path = tmp_path / "cut.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_token_list(["a", "ü", "…", ""])
    writer.add_array("numbers", [3, 1, -2])
    writer.add_array("flags", [True, False])
    writer.add_array("fractions", [0.5, 2.0])
    writer.add_bool("flag", True)
    for kind in ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"):
        getattr(writer, f"add_{kind}")(kind, 100)
    writer.add_float32("float32", 5.0)
    writer.add_float64("float64", 0.1)
    values = np.arange(256, dtype=np.float32).reshape(4, 64)
    quantized = gguf.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("weight.a", quantized, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("weight.b", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_metadata_is_what_the_gguf_library_reads(path: Path) -> None:
    fields = gguf.GGUFReader(path).fields
    expected = {k: f.contents() for k, f in fields.items() if not k.startswith("GGUF.")}
    assert GgufFile(str(path)).metadata == expected


def test_tensors_lie_where_the_gguf_library_finds_them(path: Path) -> None:
    file = GgufFile(str(path))
    found = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    assert list(file.entries) == list(found) == ["weight.a", "weight.b"]
    for name, tensor in found.items():
        entry = file.entries[name]
        assert (entry.kind, entry.shape) == (tensor.tensor_type.name, (4, 64))
        assert entry.offset == tensor.data_offset
        assert bytes(file.raw(name)) == tensor.data.tobytes()


def test_a_file_cut_in_its_header_is_named(path: Path, tmp_path: Path) -> None:
    content = path.read_bytes()
    data_start = GgufFile(str(path)).entries["weight.a"].offset
    for size in range(1, data_start - 31):
        path.write_bytes(content[:size])
        with pytest.raises(ModelFileError, match=r"cut\.gguf is not a usable GGUF file"):
            GgufFile(str(path))


@pytest.mark.parametrize(("cut", "name"), [(4 * 64 * 4, "weight.b"), (1200, "weight.a")])
def test_a_tensor_that_is_cut_off_is_named(path: Path, cut: int, name: str) -> None:
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(ModelFileError, match=rf"cut\.gguf .*tensor {name} lies beyond the end"):
        GgufFile(str(path))


def test_a_type_that_does_not_exist_is_named_with_its_tensor(path: Path) -> None:
    entry = b"weight.a" + struct.pack("<IQQI", 2, 64, 4, gguf.GGMLQuantizationType.Q8_0)
    content = path.read_bytes()
    assert entry in content
    path.write_bytes(content.replace(entry, entry[:-4] + struct.pack("<I", 999)))
    with pytest.raises(ModelFileError, match=r"tensor weight\.a: 999"):
        GgufFile(str(path))


def test_rows_that_hold_no_whole_blocks_are_named_with_their_tensor(path: Path) -> None:
    entry = b"weight.a" + struct.pack("<IQQ", 2, 64, 4)
    path.write_bytes(path.read_bytes().replace(entry, entry[:-16] + struct.pack("<QQ", 63, 4)))
    with pytest.raises(ModelFileError, match=r"tensor weight\.a has rows of 63 values"):
        GgufFile(str(path))


@pytest.mark.parametrize(
    "content", [b"", b"GGU", b"PK\3\4 not a model", b"GGUF\x09\0\0\0", b"GGUF\0\0\0\3"]
)
def test_a_file_of_another_format_is_refused(content: bytes, path: Path) -> None:
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=r"cut\.gguf"):
        GgufFile(str(path))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"gone\.gguf is missing"):
        GgufFile(str(tmp_path / "gone.gguf"))
