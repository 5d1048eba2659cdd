"""The whole examination and its report."""

import asyncio
import dataclasses
import json
from collections.abc import Sequence

import typer
from rich.console import Console
from rich.markup import escape

from batonctl.cli.flags import DEFAULT_ADDRESS
from batonctl.doctor.check import Check, Verdict, skipped
from batonctl.doctor.machine import check_machine
from batonctl.doctor.model import check_model
from batonctl.doctor.ports import DEFAULT_PORTS, check_ports
from batonctl.doctor.rates import check_rates
from batonctl.doctor.running import check_gateway, check_workers, no_stack
from batonctl.doctor.transport import check_transport
from batonctl.ports import is_free

_MARKS = {
    Verdict.OK: "[green]ok[/]",
    Verdict.WARNING: "[yellow]warning[/]",
    Verdict.FAILED: "[red]FAILED[/]",
    Verdict.SKIPPED: "[dim]skipped[/]",
}


def run_doctor(address: str | None, workers: Sequence[str], model: str, *, as_json: bool) -> None:
    """Checks everything and prints it; exits 1 if something failed.

    `address` None: a stack at the default address is examined if there is one.
    """
    checks = examine(address, workers, model)
    healthy = all(check.verdict != Verdict.FAILED for check in checks)
    if as_json:
        shown = [dataclasses.asdict(check) for check in checks]
        print(json.dumps({"healthy": healthy, "checks": shown}, ensure_ascii=False, indent=2))
    else:
        _print(checks)
    if not healthy:
        raise typer.Exit(1)


def examine(address: str | None, workers: Sequence[str], model: str) -> list[Check]:
    """All checks, from the machine outwards."""
    stack = asyncio.run(_examine_stack(address, workers))
    stack_runs = any(check.name == "stack" and check.verdict == Verdict.OK for check in stack)
    checks = check_machine(stack_runs=stack_runs)
    checks += check_ports(stack_runs=stack_runs)
    checks += check_model(model)
    if any(check.name == "engine" and check.verdict != Verdict.OK for check in checks):
        checks.append(skipped("transport", "needs the engine extra"))
    else:
        checks.append(check_transport())
        if checks[-1].verdict == Verdict.OK:
            checks += check_rates()
    return checks + stack


async def _examine_stack(address: str | None, workers: Sequence[str]) -> list[Check]:
    checks = await check_gateway(address or DEFAULT_ADDRESS)
    if address is None and checks[0].verdict == Verdict.FAILED:
        return [no_stack(DEFAULT_ADDRESS)]
    return checks + await check_workers(list(workers) or _default_workers())


def _default_workers() -> list[str]:
    """The workers of a `baton up` on its default ports: runs of taken ports."""
    addresses = []
    for role in ("prefill", "decode"):
        port = DEFAULT_PORTS[role]
        while not is_free(port) and port < DEFAULT_PORTS[role] + 10:
            addresses.append(f"127.0.0.1:{port}")
            port += 1
    return addresses


def _print(checks: Sequence[Check]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    width = max(len(check.name) for check in checks)
    for check in checks:
        console.print(f"{check.name:<{width}}  {_MARKS[check.verdict]}  {escape(check.detail)}")
        if check.fix:
            console.print(f"{'':<{width}}  -> {escape(check.fix)}")
