"""Two services of each role, which know each other's addresses."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from baton.client import BatonClient
from batonctl.ports import find_free_ports
from batonctl.service_spec import Role
from bench.service import PATIENCE, Service
from bench.tiny_model import POOL, POOL_TOKENS
from chassis.errors import ServiceError

NUM_OF_EACH = 2
# Where a service is, and where it may move.
NUM_PLACES = 2
# Fewer tokens than the load would like: requests wait for room, and some are preempted.
SMALL_POOL_TOKENS = 3_072
SMALL_POOL = (POOL[0], str(int(POOL[1]) // POOL_TOKENS * SMALL_POOL_TOKENS))
POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Fleet:
    """All processes of a soak, by role."""

    services: dict[Role, list[Service]]

    @property
    def all(self) -> list[Service]:
        """Gateways first."""
        return [service for role in Role for service in self.services[role]]

    @property
    def workers(self) -> list[Service]:
        """All but the gateways."""
        return [*self.services[Role.PREFILL], *self.services[Role.DECODE]]

    async def wait_whole(self, role: Role) -> None:
        """Returns once every service of a role is back in use, at each gateway.

        Raises TimeoutError.
        """
        async with asyncio.timeout(PATIENCE):
            for gateway in self.services[Role.GATEWAY]:
                await gateway.wait_ready()
                if role is not Role.GATEWAY:
                    await _until_all_counted(gateway, role)


@asynccontextmanager
async def fleet(model: str, folder: Path) -> AsyncIterator[Fleet]:
    """The processes, started; none outlives the block. Logs and traces go to ``folder``."""
    ports = iter(find_free_ports(len(Role) * NUM_OF_EACH * NUM_PLACES))
    places = {
        role: [[next(ports) for _ in range(NUM_PLACES)] for _ in range(NUM_OF_EACH)]
        for role in Role
    }
    services = {
        role: [
            Service(role, index, own, _flags(role, model, places), folder)
            for index, own in enumerate(places[role])
        ]
        for role in Role
    }
    try:
        for service in (each for role in Role for each in services[role]):
            service.start()
        yield Fleet(services)
    finally:
        for service in (each for role in Role for each in services[role]):
            await service.end()


def _flags(role: Role, model: str, places: dict[Role, list[list[int]]]) -> Sequence[str]:
    common = [f"--model={model}", "--drain-grace=2"]
    if role is not Role.GATEWAY:
        return [*common, "--dtype=float32", "--threads=1", *SMALL_POOL]
    peers = [
        f"--{each}-addresses="
        + ",".join(f"127.0.0.1:{port}" for own in places[each] for port in own)
        for each in (Role.PREFILL, Role.DECODE)
    ]
    return [*common, *peers]


async def _until_all_counted(gateway: Service, role: Role) -> None:
    while True:
        if await _num_counted(gateway, role) >= NUM_OF_EACH:
            return
        await asyncio.sleep(POLL_SECONDS)


async def _num_counted(gateway: Service, role: Role) -> int:
    """Workers that the gateway has for requests; 0 where it does not say."""
    async with BatonClient(gateway.address) as client:
        try:
            (model,) = await client.models(deadline=2.0)
        except ServiceError:
            return 0
    return model.prefill_workers if role is Role.PREFILL else model.decode_workers
