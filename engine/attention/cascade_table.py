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


# Nothing is measured yet: no sequences attend together until `baton kernels tune` has run.
CASCADE_TABLE: tuple[CascadeRow, ...] = ()


def find_cascade(model: ModelConfig, gpu: str) -> CascadeRow | None:
    """The row for a model, or a rank's share of it, on a GPU of this name; None where nothing was
    measured, or all layers have windows."""
    if model.sliding_window is not None and model.sliding_window_layers is None:
        return None
    heads = CascadeHeads.of_model(model)
    shipped = (row for row in CASCADE_TABLE if (row.gpu, row.heads) == (gpu, heads))
    return read_cascade(heads, gpu) or next(shipped, None)


def write_cascade(row: CascadeRow) -> Path:
    """Puts it where ``find_cascade`` finds it; OSError where it cannot."""
    facts = {**asdict(row), "torch": torch.__version__, "baton": baton_version()}
    return write_tuned(_path(row.heads, row.gpu), facts)


def read_cascade(heads: CascadeHeads, gpu: str) -> CascadeRow | None:
    """What was measured here. None where nothing was, or the file is broken or of other versions,
    which the log says."""
    path = _path(heads, gpu)
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        pairs = tuple((int(count), int(tokens)) for count, tokens in stored["least_tokens"])
        row = CascadeRow(stored["gpu"], CascadeHeads(**stored["heads"]), pairs, str(stored["note"]))
        versions = stored["torch"], stored["baton"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("%s is ignored, it is broken: %s: %s", path, type(error).__name__, error)
        return None
    if versions != (torch.__version__, baton_version()) or (row.gpu, row.heads) != (gpu, heads):
        log.warning(
            "%s is ignored, it was measured with torch %s and Baton %s: `baton kernels tune` "
            "measures again",
            path,
            *versions,
        )
        return None
    return row


def _path(heads: CascadeHeads, gpu: str) -> Path:
    shape = f"{heads.num_heads} {heads.num_kv_heads} {heads.head_dim}"
    return tuned_file("cascade", f"{gpu} {shape}")
