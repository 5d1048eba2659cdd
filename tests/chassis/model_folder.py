"""The files of a model that is none, but looks like one."""

import json
import struct
from pathlib import Path


def gguf(data: bytes = b"") -> bytes:
    """A file without tensors: magic, version, two counts, and ``data`` that nothing refers to."""
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 0) + data


def safetensors(num_bytes: int, name: str = "t") -> bytes:
    """A file with one tensor of bytes."""
    entry = {"dtype": "U8", "shape": [num_bytes], "data_offsets": [0, num_bytes]}
    header = json.dumps({name: entry}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(i % 251 for i in range(num_bytes))


def folder_files() -> dict[str, bytes]:
    """A repository as models have it, with things that nobody needs."""
    return {
        "config.json": b'{"architectures": ["LlamaForCausalLM"]}',
        "tokenizer.json": b"{}",
        "README.md": b"read me",
        "pytorch_model.bin": b"old",
        "model.safetensors": safetensors(300_000),
    }


def make_folder(folder: Path) -> Path:
    """Writes them into a new folder."""
    folder.mkdir()
    for name, data in folder_files().items():
        (folder / name).write_bytes(data)
    return folder
