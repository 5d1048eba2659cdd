"""The machine: Python, cores, memory, instructions, shared memory, installed parts."""

import os
import platform
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from batonctl.doctor.check import Check, failed, ok, skipped, warning
from batonctl.engine_parts import INSTALL_ENGINE, missing_engine_parts

GIB = 1 << 30
SUPPORTED_PYTHON = ((3, 11), (3, 13))
# Two workers with 1 GiB of KV each, torch twice, and the weights of a small model.
COMFORTABLE_MEMORY = 4 * GIB
# Where UCX keeps the queues between workers of one host.
SHARED_MEMORY = Path("/dev/shm")
COMFORTABLE_SHARED_MEMORY = 64 << 20
# What torch's bfloat16 and 4-bit matrix products run fast on, best last.
_VECTOR_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")


def check_machine(*, stack_runs: bool) -> list[Check]:
    """All checks that need nothing but this machine; ``stack_runs``: somewhere, and is asked."""
    return [
        check_python(sys.version_info[:2]),
        check_platform(sys.platform),
        check_cores(len(os.sched_getaffinity(0))),
        check_memory(_meminfo("MemAvailable")),
        check_cpu_flags(platform.machine(), _cpu_flags()),
        check_shared_memory(SHARED_MEMORY),
        check_engine_parts(missing_engine_parts(), stack_runs=stack_runs),
    ]


def check_python(version: tuple[int, int]) -> Check:
    """Whether this Python is one of those that Baton is tested with."""
    shown = ".".join(map(str, version))
    low, high = SUPPORTED_PYTHON
    if low <= version <= high:
        return ok("python", f"{shown} at {sys.executable}")
    return failed("python", f"{shown} is not supported", "use Python 3.11, 3.12 or 3.13")


def check_platform(name: str) -> Check:
    """Whether this is Linux."""
    if name == "linux":
        return ok("platform", f"{platform.system()} {platform.release()}")
    return failed("platform", f"{name} is not supported", "run Baton on Linux, or in a container")


def check_cores(count: int) -> Check:
    """Whether prefill and decode can compute at the same time."""
    if count >= 2:
        return ok("cores", f"{count} usable")
    return warning(
        "cores", "1 usable: prefill and decode take turns", "allow this process more cores"
    )


def check_memory(available: int | None) -> Check:
    """Whether a small stack fits; `available` in bytes, None: unknown."""
    if available is None:
        return skipped("memory", "/proc/meminfo does not say")
    shown = f"{available / GIB:.1f} GiB available"
    if available >= COMFORTABLE_MEMORY:
        return ok("memory", shown)
    return warning(
        "memory",
        f"{shown}; a stack with the default model likes {COMFORTABLE_MEMORY / GIB:.0f}",
        "give the workers less: BATON_PREFILL_KV_MEMORY_BYTES, BATON_DECODE_KV_MEMORY_BYTES",
    )


def check_cpu_flags(machine: str, flags: Iterable[str]) -> Check:
    """Whether the CPU has the vector instructions that matrix products need."""
    if machine not in ("x86_64", "AMD64"):
        return ok("cpu", machine)
    present = [flag for flag in _VECTOR_FLAGS if flag in set(flags)]
    if not present:
        return warning("cpu", "no AVX2: computing is slow", "use a CPU from 2015 or later")
    if "avx512_bf16" not in present:
        return ok("cpu", f"{', '.join(present)}; no bfloat16 products, so workers take float32")
    return ok("cpu", ", ".join(present))


def check_shared_memory(folder: Path) -> Check:
    """Whether UCX has room for its queues."""
    if not folder.is_dir():
        return warning("shared memory", f"no {folder}", f"mount a tmpfs at {folder}")
    free = shutil.disk_usage(folder).free
    if free >= COMFORTABLE_SHARED_MEMORY:
        return ok("shared memory", f"{free / GIB:.1f} GiB free in {folder}")
    return warning(
        "shared memory",
        f"{free >> 20} MiB free in {folder}",
        "give the container more (--shm-size 1g, or a shared IPC namespace)",
    )


def check_engine_parts(missing: Sequence[str], *, stack_runs: bool) -> Check:
    """Whether workers can run here; who has a stack to talk to need not run any."""
    if not missing:
        return ok("engine", "torch and NIXL are installed")
    verdict = warning if stack_runs else failed
    return verdict(
        "engine",
        f"not installed: {', '.join(missing)}; only client and gateway run here",
        f"install the engine extra: {INSTALL_ENGINE}",
    )


def _meminfo(key: str) -> int | None:
    for line in _lines("/proc/meminfo"):
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) * 1024
    return None


def _cpu_flags() -> list[str]:
    for line in _lines("/proc/cpuinfo"):
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            return value.split()
    return []


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
