"""The ports of a default stack."""

from batonctl.doctor.check import Check, failed, ok
from batonctl.ports import METRICS_OFFSET, is_free

DEFAULT_PORTS = {"gateway": 7100, "prefill": 7110, "decode": 7120}


def check_ports(*, stack_runs: bool) -> list[Check]:
    """One check a service; a running stack may hold them."""
    return [_check_port(owner, port, stack_runs) for owner, port in DEFAULT_PORTS.items()]


def _check_port(owner: str, port: int, stack_runs: bool) -> Check:
    name = f"port {port}"
    taken = [p for p in (port, port + METRICS_OFFSET) if not is_free(p)]
    if not taken:
        return ok(name, f"free, with {port + METRICS_OFFSET} for metrics ({owner})")
    if stack_runs:
        return ok(name, f"held while a stack runs ({owner})")
    shown = " and ".join(map(str, taken))
    return failed(
        name,
        f"{shown} taken by another process ({owner})",
        f"find it with ss -ltnp 'sport = {taken[0]}', or use baton up --{owner}-port",
    )
