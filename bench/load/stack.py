"""One service of each role, with the flags of a load."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from batonctl.ports import LOOPBACK, find_free_ports
from batonctl.service_spec import Role
from bench.service import Service

Stack = Mapping[Role, Service]

LOW_PRIORITY = 10


def give_way(pid: int) -> None:
    """Lets others run before all threads of a process; those that it starts later inherit that."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.setpriority(os.PRIO_PROCESS, int(thread), LOW_PRIORITY)


@asynccontextmanager
async def running_stack(
    model: str, folder: Path, flags: Mapping[Role, Sequence[str]]
) -> AsyncIterator[Stack]:
    """The processes, ready; none outlives the block. Logs and traces go to ``folder``."""
    ports = dict(zip(Role, find_free_ports(len(Role)), strict=True))
    common = {
        Role.GATEWAY: [
            f"--{each}-addresses={LOOPBACK}:{ports[each]}" for each in (Role.PREFILL, Role.DECODE)
        ],
        Role.PREFILL: ["--dtype=float32", "--threads=1"],
        Role.DECODE: ["--dtype=float32", "--threads=1"],
    }
    stack = {
        role: Service(
            role, 0, [ports[role]], [f"--model={model}", *common[role], *flags[role]], folder
        )
        for role in Role
    }
    try:
        for service in stack.values():
            service.start()
        await asyncio.gather(*(service.wait_ready() for service in stack.values()))
        for role in (Role.PREFILL, Role.DECODE):
            # As on hosts where gateways do not share their cores with engines.
            give_way(stack[role].pid)
        yield stack
    finally:
        for service in stack.values():
            await service.end()
