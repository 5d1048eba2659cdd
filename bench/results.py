"""What every benchmark leaves behind: ``bench/results/<bench>.json``."""

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Figure:
    """One number. ``rival`` is the rival's in the same unit as what was compared, ``floor`` what
    ``value`` would be at the limits of the hardware, measured in the same run."""

    name: str
    value: float
    unit: str
    rival: float | None = None
    rival_source: str | None = None
    floor: float | None = None
    note: str | None = None


def write_results(
    bench: str,
    figures: Sequence[Figure],
    packages: Sequence[str],
    folder: Path = FOLDER,
    *,
    hardware: Mapping[str, str] | None = None,
    file: str | None = None,
) -> Path:
    """Writes the figures with where they come from; ``packages`` are those whose version counts.

    ``hardware`` is what matters beside the CPU and its memory; ``file`` names the file otherwise
    than the benchmark, as one that runs on a CPU and on a GPU does.
    """
    results = {
        "bench": bench,
        "command": " ".join(["python", "-m", f"bench.{bench}", *sys.argv[1:]]),
        "commit": _commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "hardware": _hardware() | dict(hardware or {}),
        "versions": {"python": platform.python_version()}
        | {package: importlib.metadata.version(package) for package in packages},
        "figures": [
            {key: value for key, value in asdict(figure).items() if value is not None}
            for figure in figures
        ],
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{file or bench}.json"
    path.write_text(json.dumps(results, indent=2) + "\n")
    return path


def _commit() -> str:
    """The commit, marked where the tree differs from it."""
    root = Path(__file__).parent.parent
    git = ["git", "-C", str(root)]
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    changed = subprocess.run(
        [*git, "status", "--porcelain", "--untracked-files=no"],
        capture_output=True,
        text=True,
        check=True,
    )
    return commit.stdout.strip() + ("-dirty" if changed.stdout.strip() else "")


def _hardware() -> dict[str, str | int | float]:
    cpuinfo = Path("/proc/cpuinfo").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in cpuinfo if ":" in line)
    fields = {key.strip(): value.strip() for key, value in fields.items()}
    wanted = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16")
    flags = set(fields.get("flags", "").split())
    pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": fields.get("model name", platform.machine()),
        "cpu_features": " ".join(flag for flag in wanted if flag in flags),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(pages * page_bytes / (1 << 30), 1),
        "load_average_1m": round(os.getloadavg()[0], 2),
    }
