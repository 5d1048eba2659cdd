"""A cold start from files: Llama 3.1 8B's shape in shards on a local disk, nothing of it in memory.

``python -m bench.shards [FOLDER]`` writes 16 GB of random weights there (by default to a temporary
folder), and measures the disk, loading alone, and a whole start, each with the page cache dropped.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from safetensors.torch import save_file

from bench.cold_start import cold_start, seconds_until_ready, start_command
from bench.gpu import CONFIG
from bench.results import Figure, write_results
from engine.config import ModelConfig
from engine.models import load_model
from engine.weights.checkpoint import open_checkpoint
from engine.weights.hf_config import config_from_hf
from engine.weights.shape_checkpoint import ShapeCheckpoint
from engine.weights.stored_tensor import StoredTensor

SHARD_BYTES = 4 << 30
READ_BYTES = 16 << 20
READERS = 16


class NamedShapes(ShapeCheckpoint):
    """Notes what a model asks for."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.shapes: dict[str, tuple[int, ...]] = {}

    def tensor(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        self.shapes[name] = shape
        return super().tensor(name, shape)


def write_shards(folder: Path) -> list[Path]:
    """Random weights of every tensor of the model, in shards with an index."""
    (folder / "config.json").write_text(json.dumps(CONFIG))
    checkpoint = NamedShapes(config_from_hf(str(folder / "config.json"), CONFIG))
    load_model(checkpoint, torch.bfloat16, device=torch.device("meta"))
    shards: list[dict[str, tuple[int, ...]]] = [{}]
    room = SHARD_BYTES
    for name, shape in checkpoint.shapes.items():
        size = 2 * torch.Size(shape).numel()
        if size > room:
            shards.append({})
            room = SHARD_BYTES
        shards[-1][name] = shape
        room -= size
    files, places = [], {}
    for number, shapes in enumerate(shards, 1):
        file = folder / f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_file({name: _random(shape) for name, shape in shapes.items()}, file)
        places.update(dict.fromkeys(shapes, file.name))
        files.append(file)
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    os.sync()
    return files


def _random(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.bfloat16, device="cuda").mul_(0.02).cpu()


def forget(files: Sequence[Path]) -> None:
    """Drops what the page cache has of files that are on the disk and that nobody maps."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def read(files: Sequence[Path]) -> None:
    """Reads them whole, many pieces at a time."""
    descriptors = {file: os.open(file, os.O_RDONLY) for file in files}
    pieces = [
        (descriptors[file], offset)
        for file in files
        for offset in range(0, file.stat().st_size, READ_BYTES)
    ]
    with ThreadPoolExecutor(READERS) as threads:
        list(threads.map(lambda piece: len(os.pread(piece[0], READ_BYTES, piece[1])), pieces))
    for descriptor in descriptors.values():
        os.close(descriptor)


def measure(folder: Path) -> list[Figure]:
    files = write_shards(folder)
    num_bytes = sum(file.stat().st_size for file in files)

    def taken(function: Callable[[], object]) -> float:
        forget(files)
        began = time.monotonic()
        function()
        torch.cuda.synchronize()
        return time.monotonic() - began

    disk = taken(lambda: read(files))
    rate = f"{num_bytes / disk / 1e9:.2f} GB/s"
    print(f"{num_bytes / 1e9:.1f} GB in {len(files)} shards; the disk alone: {rate}", flush=True)
    dummy = cold_start(folder)
    forget(files)
    start = seconds_until_ready(start_command(folder, "auto"))
    device = torch.device("cuda", 0)
    load = taken(lambda: load_model(open_checkpoint(str(folder)), torch.bfloat16, device=device))
    note = f"{num_bytes / load / 1e9:.2f} GB/s; the disk alone {rate}"
    return [
        Figure("load.shards.s", round(load, 2), "s", floor=round(disk, 2), note=note),
        Figure(
            "cold_start.shards.s", round(start, 2), "s", floor=round(disk, 2),
            note=f"with dummy weights {dummy.value} s; the floor is the disk's",
        ),
    ]  # fmt: skip


def main() -> None:
    if len(sys.argv) > 1:
        figures = measure(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            figures = measure(Path(folder))
    for figure in figures:
        print(f"{figure.name} {figure.value} s, floor {figure.floor}; {figure.note}", flush=True)
    hardware = {"gpu": torch.cuda.get_device_name()}
    print(write_results("shards", figures, ("torch", "safetensors"), hardware=hardware))


if __name__ == "__main__":
    main()
