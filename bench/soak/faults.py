"""What happens to the services: a schedule that a seed gives, and who carries it out."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

from batonctl.service_spec import Role
from bench.service import Service
from bench.soak.fault_kind import KILLS, FaultKind
from bench.soak.fleet import NUM_OF_EACH, Fleet
from bench.soak.tally import Tally

LONGEST_PAUSE = 2.0
# Shorter and longer than what it takes until peers give a frozen process up.
FREEZES = (0.5, 3.0, 8.0, 30.0)


@dataclass(frozen=True, slots=True)
class Fault:
    """``index`` says to which service of the role, after a pause; a freeze lasts ``freeze`` s."""

    kind: FaultKind
    index: int
    pause: float
    freeze: float


def schedule(rng: random.Random, num_kills: int) -> dict[Role, list[Fault]]:
    """So many kills over all roles, and among them a freeze for every four, a drain for every five.

    Gateways start soonest, and are killed most often.
    """
    num_workers = round(num_kills * 0.3)
    shares = {
        Role.GATEWAY: num_kills - 2 * num_workers,
        Role.PREFILL: num_workers,
        Role.DECODE: num_workers,
    }
    return {role: _faults(rng, num) for role, num in shares.items()}


def _faults(rng: random.Random, num_kills: int) -> list[Fault]:
    kinds = [rng.choice(KILLS) for _ in range(num_kills)]
    kinds += [FaultKind.FREEZE] * (num_kills // 4) + [FaultKind.DRAIN] * (num_kills // 5)
    rng.shuffle(kinds)
    return [
        Fault(kind, rng.randrange(NUM_OF_EACH), rng.uniform(0, LONGEST_PAUSE), rng.choice(FREEZES))
        for kind in kinds
    ]


async def attack(fleet: Fleet, role: Role, faults: Sequence[Fault], tally: Tally) -> None:
    """Carries out what is due for a role, one after the other: its other service is there then.

    Raises TimeoutError where a service does not come back into use.
    """
    for fault in faults:
        await asyncio.sleep(fault.pause)
        service = fleet.services[role][fault.index]
        if role is Role.GATEWAY and fault.kind is not FaultKind.FREEZE:
            # What it has counted goes with it.
            await tally.note_retries(service)
        await _strike(service, fault)
        tally.faults[role, fault.kind] += 1
        await fleet.wait_whole(role)


async def _strike(service: Service, fault: Fault) -> None:
    match fault.kind:
        case FaultKind.FREEZE:
            await service.freeze(fault.freeze)
            return
        case FaultKind.DRAIN:
            await service.drain()
        case FaultKind.MOVE:
            await service.kill()
            service.move()
        case FaultKind.KILL:
            await service.kill()
    service.start()
    await service.wait_ready()
