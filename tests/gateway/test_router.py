"""Which pair of workers is chosen, and what is said when there is none."""

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from baton.v1 import kv_transfer_pb2, worker_pb2
from chassis.channel import open_channel
from chassis.errors import Unavailable
from gateway.circuit import RetryBudget
from gateway.router import Demand, Router
from gateway.session import Session
from gateway.turns import Turns
from gateway.worker import Worker, WorkerIdentity

PREFILL, DECODE = worker_pb2.WORKER_ROLE_PREFILL, worker_pb2.WORKER_ROLE_DECODE
DEMAND = Demand(num_tokens=100, max_total_tokens=200, hand_off=True)


class Directory:
    """Workers as a test wants them."""

    def __init__(self, *workers: Worker) -> None:
        self.prefill_workers = [w for w in workers if w.identity.role == PREFILL]
        self.decode_workers = [w for w in workers if w.identity.role == DECODE]

    def why_none(self, role: str) -> str:
        return f"no {role} worker"

    def may_return(self, role: str) -> bool:
        return False


def worker(
    role: worker_pb2.WorkerRole.ValueType,
    name: str,
    layout: bytes = b"a",
    checkpoint: bytes = b"c",
    **load: Any,
) -> Worker:
    identity = WorkerIdentity(
        boot_id=name.encode().ljust(16),
        role=role,
        name=name,
        address="127.0.0.1:1",
        model="m",
        checkpoint_digest=checkpoint,
        layout_digest=layout,
        layout=kv_transfer_pb2.KvLayout(dtype=layout.decode()),
        max_context_tokens=1000,
        block_size=16,
    )
    channel = open_channel("127.0.0.1:1")
    made = Worker(identity, channel, RetryBudget())
    made.serving = True
    if role == DECODE:
        made.session = Session(channel, name, identity.boot_id, Turns())
        made.session.is_open = True
    blocks = worker_pb2.BlockCounts(free=1000, total=1000)
    made.report(worker_pb2.WorkerLoad(**{"accepting": True, "blocks": blocks, **load}))
    return made


def shares(router: Router, num_requests: int) -> Counter[str]:
    """How often each worker is chosen while nobody reports anything new."""
    counts: Counter[str] = Counter()
    for _ in range(num_requests):
        route = router.choose(DEMAND)
        for chosen in (route.prefill, route.decode):
            assert chosen is not None
            chosen.sent(DEMAND.num_tokens)
            counts[chosen.identity.name] += 1
    return counts


async def test_equal_workers_get_equal_shares() -> None:
    workers = [worker(PREFILL, "p0"), worker(PREFILL, "p1"), worker(DECODE, "d0")]
    counts = shares(Router(Directory(*workers), random.Random(1)), 40)
    assert counts["p0"] == counts["p1"] == 20


async def test_a_slow_prefill_worker_gets_a_smaller_share() -> None:
    fast, slow = worker(PREFILL, "fast", rate=3000.0), worker(PREFILL, "slow", rate=1000.0)
    counts = shares(Router(Directory(fast, slow, worker(DECODE, "d"))), 40)
    assert counts["fast"] == 30
    assert counts["slow"] == 10


async def test_a_slow_decode_worker_gets_a_smaller_share() -> None:
    fast, slow = worker(DECODE, "fast", rate=0.01), worker(DECODE, "slow", rate=0.03)
    counts = shares(Router(Directory(worker(PREFILL, "p"), fast, slow)), 40)
    assert counts["fast"] == 30
    assert counts["slow"] == 10


async def test_a_report_replaces_what_was_counted_here() -> None:
    p0, p1 = worker(PREFILL, "p0"), worker(PREFILL, "p1", pending_tokens=500)
    router = Router(Directory(p0, p1, worker(DECODE, "d")))
    assert router.choose(DEMAND).prefill is p0
    p0.sent(1000)
    assert router.choose(DEMAND).prefill is p1
    p0.report(p0.load)
    assert router.choose(DEMAND).prefill is p0


async def test_a_worker_without_room_is_a_last_resort() -> None:
    full = worker_pb2.BlockCounts(used=1000, total=1000)
    d0 = worker(DECODE, "d0", blocks=full)
    d1 = worker(DECODE, "d1", running=100)
    router = Router(Directory(worker(PREFILL, "p"), d0, d1))
    assert router.choose(DEMAND).decode is d1
    d1.serving = False
    assert router.choose(DEMAND).decode is d0


async def test_only_workers_with_equal_layouts_pair() -> None:
    busy = worker(DECODE, "busy", b"b", running=100)
    idle = worker(DECODE, "idle", b"c")
    router = Router(Directory(worker(PREFILL, "p", b"b"), busy, idle))
    assert router.choose(DEMAND).decode is busy
    busy.serving = False
    with pytest.raises(
        Unavailable, match=r"KV layout.*\(p has dtype b, idle has dtype c\)"
    ) as caught:
        router.choose(DEMAND)
    assert caught.value.reason == "NO_COMPATIBLE_WORKERS"


async def test_workers_with_other_weights_under_one_name_are_told_apart() -> None:
    router = Router(
        Directory(worker(PREFILL, "p", b"a", b"new"), worker(DECODE, "d", b"b", b"old"))
    )
    with pytest.raises(Unavailable, match=r"checkpoint.*\(p has 6e6577, d has 6f6c64\)") as caught:
        router.choose(DEMAND)
    assert caught.value.reason == "NO_COMPATIBLE_WORKERS"


@pytest.mark.parametrize("hand_off", [True, False])
async def test_output_goes_on_only_on_the_checkpoint_that_began_it(hand_off: bool) -> None:
    old = (
        worker(PREFILL, "p0", b"a", b"old", pending_tokens=1000),
        worker(DECODE, "d0", b"a", b"old"),
    )
    new = worker(PREFILL, "p1", b"b", b"new"), worker(DECODE, "d1", b"b", b"new")
    router = Router(Directory(*old, *new))
    demand = replace(DEMAND, hand_off=hand_off)
    assert router.choose(demand).prefill is new[0]
    assert router.choose(replace(demand, checkpoint=b"old")).prefill is old[0]
    old[0].serving = False
    with pytest.raises(
        Unavailable, match=r"no ready prefill worker has checkpoint 6f6c64"
    ) as caught:
        router.choose(replace(demand, checkpoint=b"old"))
    assert caught.value.reason == "NO_COMPATIBLE_WORKERS"


async def test_a_worker_that_refused_is_avoided_where_another_is_left() -> None:
    d0, d1 = worker(DECODE, "d0"), worker(DECODE, "d1", running=100)
    router = Router(Directory(worker(PREFILL, "p"), d0, d1))
    avoid = frozenset([d0.identity.boot_id])
    assert router.choose(Demand(100, 200, True, avoid)).decode is d1
    avoid |= {d1.identity.boot_id}
    assert router.choose(Demand(100, 200, True, avoid)).decode is d0


async def test_one_token_needs_prefill_alone() -> None:
    route = Router(Directory(worker(PREFILL, "p"))).choose(Demand(100, 101, hand_off=False))
    assert route.decode is None


FLAWS = ["absent", "not serving", "not accepting", "lost", "no session", "failing"]


def spoil(workers: list[Worker], role: worker_pb2.WorkerRole.ValueType, flaw: str) -> None:
    """Makes the worker of a role one that cannot be chosen."""
    flawed = next(w for w in workers if w.identity.role == role)
    if flaw == "absent":
        workers.remove(flawed)
    elif flaw == "not serving":
        flawed.serving = False
    elif flaw == "not accepting":
        flawed.report(worker_pb2.WorkerLoad(accepting=False))
    elif flaw == "failing":
        for _ in range(5):
            flawed.circuit.failed(flawed.circuit.sent())
    elif flaw == "lost" or role == PREFILL:
        flawed.lost.set()
    else:
        flawed.session = None


@pytest.mark.parametrize("flaw", FLAWS)
async def test_without_a_decode_worker_the_reason_is_given_at_once(flaw: str) -> None:
    workers = [worker(PREFILL, "p"), worker(DECODE, "d")]
    spoil(workers, DECODE, flaw)
    router = Router(Directory(*workers))
    assert not router.has_pair()
    with pytest.raises(Unavailable) as caught:
        router.choose(DEMAND)
    assert caught.value.reason == "NO_DECODE_WORKER"


@pytest.mark.parametrize("flaw", FLAWS)
@pytest.mark.parametrize("hand_off", [True, False])
async def test_without_a_prefill_worker_decode_computes_the_prompt(
    flaw: str, hand_off: bool
) -> None:
    workers = [worker(PREFILL, "p"), worker(DECODE, "d")]
    spoil(workers, PREFILL, flaw)
    router = Router(Directory(*workers))
    assert not router.has_pair()
    route = router.choose(Demand(100, 200, hand_off))
    assert (route.prefill, route.decode) == (None, workers[-1])
    assert router.max_context_tokens() == 1000


async def test_the_context_is_that_of_the_roomiest_pair() -> None:
    router = Router(Directory(worker(PREFILL, "p"), worker(DECODE, "d")))
    assert router.max_context_tokens() == 1000
    with pytest.raises(Unavailable) as caught:
        router.choose(Demand(900, 1001, True))
    assert caught.value.reason == "CONTEXT_TOO_LONG_FOR_WORKERS"
    assert Router(Directory()).max_context_tokens() is None
