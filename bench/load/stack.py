"""One service of each role, as a load needs them."""

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from batonctl.service_spec import Role
from bench.stack import WORKERS, Stack, running_stack

LOW_PRIORITY = 10


def give_way(pid: int) -> None:
    """Lets others run before all threads of a process; those that it starts later inherit that."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.setpriority(os.PRIO_PROCESS, int(thread), LOW_PRIORITY)


@asynccontextmanager
async def loaded_stack(
    model: str, folder: Path, flags: Mapping[Role, Sequence[str]]
) -> AsyncIterator[Stack]:
    """The processes, ready; workers compute in float32 on one thread each."""
    engine = ("--dtype=float32", "--threads=1")
    all_flags = {
        role: [*(engine if role in WORKERS else ()), *flags.get(role, ())] for role in Role
    }
    async with running_stack(model, folder, all_flags) as stack:
        for role in WORKERS:
            # As on hosts where gateways do not share their cores with engines.
            give_way(stack[role].pid)
        yield stack
