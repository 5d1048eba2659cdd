"""What `baton kernels tune` measured on this machine, kept in the user's cache.

It only says up to how many tokens the one backend of a quantised weight is faster than the other,
which is as right: a file can cost time, and no more. Dense weights have one backend and no place
here, because workers of a pair must multiply them alike (docs/adr/0008-float32-is-exact.md).
"""

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import torch

from engine.kernels.gemm_row import GemmRow, WeightKind
from engine.kernels.tuned_files import baton_version, tuned_file, write_tuned

KINDS: tuple[WeightKind, ...] = ("q4", "q8")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Machine:
    """What a measurement holds for; ``capability`` is torch's name of the vector instructions."""

    cpu: str
    capability: str
    torch: str
    baton: str

    @classmethod
    def here(cls) -> Self:
        return cls(
            cpu=_cpu_name(),
            capability=torch.backends.cpu.get_cpu_capability(),
            torch=torch.__version__,
            baton=baton_version(),
        )


@dataclass(frozen=True, slots=True)
class TunedTable:
    """``int4_up_to``: tokens by kind of weight. ``date`` and ``threads`` are for people."""

    machine: Machine
    date: str
    threads: int
    int4_up_to: dict[WeightKind, int]

    def rows(self) -> list[GemmRow]:
        """They stand for all numbers of tokens, so that no row after them applies."""
        note = f"measured here on {self.date}, threads: {self.threads}"
        architecture = self.machine.capability
        rows = []
        for kind, max_tokens in self.int4_up_to.items():
            rows.append(GemmRow(kind, architecture, max_tokens, "int4", note))
            rows.append(GemmRow(kind, architecture, None, "dequantize", note))
        return rows

    def write(self) -> Path:
        """Puts it where ``read_tuned`` finds it, at once or not at all; OSError where it cannot."""
        return write_tuned(tuned_path(self.machine), asdict(self))


def tuned_path(machine: Machine) -> Path:
    return tuned_file("gemm", f"{machine.cpu} {machine.capability}")


def read_tuned() -> TunedTable | None:
    """This machine's table. None where there is none, or it is broken or of other versions, which
    the log says."""
    here = Machine.here()
    path = tuned_path(here)
    try:
        table = _parse(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("%s is ignored, it is broken: %s: %s", path, type(error).__name__, error)
        return None
    if table.machine != here:
        log.warning(
            "%s is ignored, it was measured with torch %s and Baton %s: `baton kernels tune` "
            "measures again",
            path,
            table.machine.torch,
            table.machine.baton,
        )
        return None
    return table


def _parse(stored: dict[str, Any]) -> TunedTable:
    """Raises ValueError, KeyError or TypeError for what `write` has not written."""
    counts = stored["int4_up_to"]
    for kind in KINDS:
        if type(counts[kind]) is not int or counts[kind] < 0:
            raise ValueError(f"int4_up_to of {kind} is {counts[kind]!r}")
    return TunedTable(
        machine=Machine(**stored["machine"]),
        date=str(stored["date"]),
        threads=int(stored["threads"]),
        int4_up_to={kind: counts[kind] for kind in KINDS},
    )


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "unknown"
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "unknown")
