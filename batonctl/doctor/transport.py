"""Whether KV blocks can move between processes of this host."""

import subprocess
import sys
from collections.abc import Sequence

from batonctl.doctor.check import Check, failed, ok

LIMIT_SECONDS = 60.0
PROBE = (sys.executable, "-P", "-m", "batonctl.doctor.transport_probe")
_FIX = (
    "check that UCX_TLS and UCX_NET_DEVICES are unset or name what this machine has; "
    "inside a container, that /dev/shm is there"
)


def check_transport(probe: Sequence[str] = PROBE, limit: float = LIMIT_SECONDS) -> Check:
    """Runs the self-test that a worker runs before it starts."""
    try:
        run = subprocess.run(probe, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return failed("transport", f"the self-test did not end within {limit:g} s", _FIX)
    if run.returncode == 0:
        return ok("transport", run.stdout.strip().splitlines()[-1])
    said = run.stderr.strip().splitlines()
    cause = said[-1] if said else "it said nothing"
    return failed("transport", f"the self-test failed (exit {run.returncode}): {cause}", _FIX)
