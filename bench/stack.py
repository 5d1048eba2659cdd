"""One service of each role, for a benchmark of the whole."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType

from batonctl.ports import LOOPBACK, find_free_ports
from batonctl.service_spec import Role
from bench.service import Service

Stack = Mapping[Role, Service]

WORKERS = (Role.PREFILL, Role.DECODE)


@asynccontextmanager
async def running_stack(
    model: str,
    folder: Path,
    flags: Mapping[Role, Sequence[str]],
    environments: Mapping[Role, Mapping[str, str]] = MappingProxyType({}),
) -> AsyncIterator[Stack]:
    """The processes, ready; none outlives the block. Logs and traces go to ``folder``."""
    ports = dict(zip(Role, find_free_ports(len(Role)), strict=True))
    peers = {Role.GATEWAY: [f"--{each}-addresses={LOOPBACK}:{ports[each]}" for each in WORKERS]}
    stack = {
        role: Service(
            role,
            0,
            [ports[role]],
            [f"--model={model}", *peers.get(role, ()), *flags.get(role, ())],
            folder,
            environments.get(role, {}),
        )
        for role in Role
    }
    try:
        for service in stack.values():
            service.start()
        await asyncio.gather(*(service.wait_ready() for service in stack.values()))
        yield stack
    finally:
        for service in stack.values():
            await service.end()
