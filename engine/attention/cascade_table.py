"""From when on it pays to attend together to what decoding sequences share: measured, or never.

A file that `baton kernels tune` wrote on this machine stands before the rows that ship. It can cost
time, and no more: both ways are as right.
"""

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import torch

from engine.config import ModelConfig
from engine.kernels.tuned_files import baton_version, tuned_file, write_tuned

# Tokens of a pair that says that it does not pay.
NEVER = 1 << 30

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CascadeHeads:
    """What of a model's shape attention knows; of one rank."""

    num_heads: int
    num_kv_heads: int
    head_dim: int

    @classmethod
    def of_model(cls, model: ModelConfig) -> Self:
        return cls(model.num_heads, model.num_kv_heads, model.head_dim)


@dataclass(frozen=True, slots=True)
class CascadeRow:
    """For GPUs of one name. ``least_tokens``: pairs of a number of sequences, rising, and how many
    tokens they must share; they hold up to the next pair's number."""

    gpu: str
    heads: CascadeHeads
    least_tokens: tuple[tuple[int, int], ...]
    note: str

    def pays(self, members: int, tokens: int) -> bool:
        """Whether ``members`` sequences should attend together to ``tokens`` tokens."""
        least = [number for count, number in self.least_tokens if count <= members]
        return bool(least) and tokens >= least[-1]


CASCADE_TABLE: tuple[CascadeRow, ...] = (
    # Llama 3.1 8B: of 288 points none is chosen more than 2 % + 5 us too long, and a step of 256
    # sequences with 32768 shared and 256 own tokens takes 17.6 ms, by themselves 157.8.
    CascadeRow(
        gpu="NVIDIA H200",
        heads=CascadeHeads(num_heads=32, num_kv_heads=8, head_dim=128),
        least_tokens=((2, 32768), (4, 8192), (8, 2048), (16, 1024), (32, 512), (128, 256)),
        note="bench.cascade, torch 2.11.0+cu130",
    ),
)


def find_cascade(model: ModelConfig, gpu: str) -> CascadeRow | None:
    """The row for a model, or a rank's share of it, on a GPU of this name; None where nothing was
    measured, or all layers have windows."""
    if model.sliding_window is not None and model.sliding_window_layers is None:
        return None
    heads = CascadeHeads.of_model(model)
    row = next((row for row in cascade_rows(gpu) if row.heads == heads), None)
    return row if row is not None and row.least_tokens else None


def cascade_rows(gpu: str) -> list[CascadeRow]:
    """Those of a GPU of this name, what was measured here first."""
    folder = tuned_file("cascade", gpu).parent
    measured = (_read(path) for path in sorted(folder.glob("cascade-*.json")))
    rows = [row for row in measured if row is not None]
    return [row for row in (*rows, *CASCADE_TABLE) if row.gpu == gpu]


def write_cascade(row: CascadeRow, folder: Path | None = None) -> Path:
    """Puts it where ``cascade_rows`` finds it, or into another folder that BATON_KERNEL_DIR may
    name; OSError where it cannot."""
    shape = f"{row.heads.num_heads} {row.heads.num_kv_heads} {row.heads.head_dim}"
    facts = {**asdict(row), "torch": torch.__version__, "baton": baton_version()}
    path = tuned_file("cascade", f"{row.gpu} {shape}")
    return write_tuned(path if folder is None else folder / path.name, facts)


def _read(path: Path) -> CascadeRow | None:
    """None where the file is broken or of other versions, which the log says."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        pairs = tuple((int(count), int(tokens)) for count, tokens in stored["least_tokens"])
        heads = CascadeHeads(**stored["heads"])
        row = CascadeRow(str(stored["gpu"]), heads, pairs, str(stored["note"]))
        versions = stored["torch"], stored["baton"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("%s is ignored, it is broken: %s: %s", path, type(error).__name__, error)
        return None
    if versions != (torch.__version__, baton_version()):
        log.warning(
            "%s is ignored, it was measured with torch %s and Baton %s: `baton kernels tune` "
            "measures again",
            path,
            *versions,
        )
        return None
    return row
