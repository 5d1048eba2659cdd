"""How fast KV blocks move between two processes of this host, on every pair of devices."""

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from batonctl.doctor.check import Check, ok, skipped, warning

LIMIT_SECONDS = 180.0
PROBE = (sys.executable, "-P", "-m", "batonctl.doctor.rate_probe")
# Of the rate of a plain copy. Over TCP, which UCX takes silently, it is less.
LEAST_SHARE = 0.1
_FIX = (
    "check that UCX_TLS is unset, and that both processes see both devices and share /dev/shm, and "
    "on GPUs one IPC and one PID namespace"
)


def check_rates(probe: Sequence[str] = PROBE, limit: float = LIMIT_SECONDS) -> list[Check]:
    """One a pair of devices and transport; what was not measured is skipped, with the reason."""
    try:
        run = subprocess.run(probe, capture_output=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired as timeout:
        # Many GPUs have more pairs than there is time for.
        checks = _check_pairs(timeout.stdout or b"")
        return [*checks, skipped("transfer", f"nothing more within {limit:g} s")]
    checks = _check_pairs(run.stdout)
    if run.returncode != 0:
        said = run.stderr.decode(errors="replace").strip().splitlines()
        cause = said[-1] if said else "it said nothing"
        checks.append(skipped("transfer", f"measuring ended with {run.returncode}: {cause}"))
    return checks


def _check_pairs(output: bytes) -> list[Check]:
    """Of the lines that are whole."""
    lines = output.decode(errors="replace").splitlines()
    found = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
    return [_check_pair(pair) for pair in found]


def _check_pair(found: dict[str, Any]) -> Check:
    name = f"transfer {found['pair']}"
    if "error" in found:
        return skipped(name, f"not measured: {found['error']}")
    rate, plain = found["rate"] / 1e9, found["plain"] / 1e9
    detail = f"{rate:.1f} GB/s over {found['transport']}, a plain copy makes {plain:.1f}"
    return ok(name, detail) if rate > LEAST_SHARE * plain else warning(name, detail, _FIX)
