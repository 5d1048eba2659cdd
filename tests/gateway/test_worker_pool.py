"""Who counts as a worker, and when."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest

from baton.v1 import worker_pb2
from gateway.resolver import Resolver, TargetError
from gateway.router import Router
from gateway.worker_pool import WorkerPool
from tests.gateway.scripted_workers import MODEL, ScriptedDecode, ScriptedPrefill, ScriptedWorker


class PoolStage:
    """Starts scripted workers and pools over them; all is closed after the test."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack

    async def serve(self, worker: ScriptedWorker, port: int = 0) -> str:
        await self._stack.enter_async_context(worker.serving(port))
        return worker.address

    async def pool(self, prefill: list[str], decode: list[str]) -> WorkerPool:
        pool = WorkerPool(MODEL, Resolver(prefill), Resolver(decode), refresh_seconds=0.1)
        await self._stack.enter_async_context(pool.running())
        return pool


@pytest.fixture
async def pools() -> AsyncIterator[PoolStage]:
    async with AsyncExitStack() as stack:
        yield PoolStage(stack)


async def until(pool: WorkerPool, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        await pool.wait_until(condition)


async def test_a_worker_is_known_by_what_it_says_about_itself(pools: PoolStage) -> None:
    decode = ScriptedDecode(max_context_tokens=77)
    address = await pools.serve(decode)
    pool = await pools.pool([], [address])
    await until(pool, lambda: any(worker.ready for worker in pool.decode_workers))
    identity = pool.decode_workers[0].identity
    assert identity.boot_id == decode.info.boot_id
    assert identity.address == address
    # MergeFrom of the info: what the test set wins.
    assert identity.max_context_tokens == 77


async def test_two_addresses_with_one_boot_id_are_one_worker(pools: PoolStage) -> None:
    first, second = ScriptedDecode(), ScriptedDecode()
    second.info.boot_id = first.info.boot_id
    addresses = [await pools.serve(first), await pools.serve(second)]
    pool = await pools.pool([], addresses)
    await until(pool, lambda: any(worker.ready for worker in pool.decode_workers))
    await until(pool, lambda: "the same worker as" in pool.why_none("decode"))
    assert len(pool.decode_workers) == 1
    assert first.num_sessions + second.num_sessions == 1


@pytest.mark.parametrize(
    ("worker", "said"),
    [
        pytest.param(ScriptedPrefill, "WORKER_ROLE_PREFILL", id="role"),
        pytest.param(lambda: ScriptedDecode(model="other"), "serves 'other'", id="model"),
        pytest.param(
            lambda: ScriptedDecode(vocabulary_digest=b"other"),
            "'scripted' has 6f74686572 on the worker and 766f63616275 on the gateway",
            id="vocabulary",
        ),
        pytest.param(lambda: ScriptedDecode(boot_id=b"short"), "boot id", id="boot-id"),
    ],
)
async def test_a_worker_that_is_not_what_was_meant_is_not_used(
    pools: PoolStage, worker: Callable[[], ScriptedWorker], said: str
) -> None:
    wrong = await pools.serve(worker())
    right = ScriptedDecode()
    pool = await pools.pool([], [wrong, await pools.serve(right)])
    await until(pool, lambda: said in pool.why_none("decode"))
    assert [w.identity.boot_id for w in pool.decode_workers] in ([], [right.info.boot_id])


async def test_a_restarted_worker_is_another_worker(pools: PoolStage) -> None:
    async with AsyncExitStack() as life:
        first = await life.enter_async_context(ScriptedPrefill().serving())
        assert first.server is not None
        port = first.server.port
        pool = await pools.pool([first.address], [])
        await until(pool, lambda: any(worker.ready for worker in pool.prefill_workers))
        old = pool.prefill_workers[0]
    await asyncio.wait_for(old.lost.wait(), 10)
    second = ScriptedPrefill()
    await pools.serve(second, port)
    await until(pool, lambda: any(worker.ready for worker in pool.prefill_workers))
    assert pool.prefill_workers[0].identity.boot_id == second.info.boot_id
    assert not old.ready


async def test_readiness_and_load_are_followed(pools: PoolStage) -> None:
    prefill = ScriptedPrefill()
    pool = await pools.pool([await pools.serve(prefill)], [])
    await until(pool, lambda: any(worker.ready for worker in pool.prefill_workers))
    worker = pool.prefill_workers[0]
    prefill.report(pending_tokens=123)
    await until(pool, lambda: worker.pending_tokens == 123)
    assert prefill.server is not None
    prefill.server.set_ready(False)
    await until(pool, lambda: not worker.ready)
    prefill.server.set_ready(True)
    await until(pool, lambda: worker.ready)
    prefill.load.accepting = False
    prefill.report()
    await until(pool, lambda: not worker.ready)


async def test_a_name_brings_every_address_behind_it(pools: PoolStage) -> None:
    prefill, decode = ScriptedPrefill(), ScriptedDecode()
    await pools.serve(prefill)
    await pools.serve(decode)
    names = [
        f"dns:///localhost:{worker.address.rpartition(':')[2]}" for worker in (prefill, decode)
    ]
    pool = await pools.pool([names[0]], [names[1]])
    await until(pool, Router(pool).has_pair)
    assert [w.identity.role for w in pool.prefill_workers] == [worker_pb2.WORKER_ROLE_PREFILL]


async def test_addresses_are_listed_once() -> None:
    resolver = Resolver(["127.0.0.1:7101", "dns:///127.0.0.1:7101", "127.0.0.1:7102"])
    assert await resolver.resolve() == ["127.0.0.1:7101", "127.0.0.1:7102"]
    assert not resolver.is_fixed


async def test_a_name_without_addresses_adds_none() -> None:
    assert await Resolver(["dns:///nobody.invalid:7101"]).resolve() == []


@pytest.mark.parametrize("target", ["host", "host:", ":7101", "host:port", "host:0", "dns:///host"])
def test_a_target_without_a_port_is_refused(target: str) -> None:
    with pytest.raises(TargetError, match="host:port"):
        Resolver([target])


async def test_a_decode_worker_is_told_once_of_the_prefill_workers_it_can_read_from(
    pools: PoolStage,
) -> None:
    other, prefill, decode = (
        ScriptedPrefill(layout_digest=b"other"),
        ScriptedPrefill(),
        ScriptedDecode(),
    )
    pool = await pools.pool(
        [await pools.serve(other), await pools.serve(prefill)], [await pools.serve(decode)]
    )
    await until(pool, lambda: sum(worker.ready for worker in pool.prefill_workers) == 2)
    async with asyncio.timeout(10):
        pair = await decode.pairs.get()
    assert pair.prefill_address == prefill.address
    assert pair.prefill_boot_id == prefill.info.boot_id
    prefill.report(pending_tokens=5)
    await until(pool, lambda: any(worker.pending_tokens == 5 for worker in pool.prefill_workers))
    assert decode.pairs.empty()


async def test_a_look_up_that_fails_by_a_bug_is_tried_again(pools: PoolStage) -> None:
    class Broken(Resolver):
        has_failed = False

        async def resolve(self) -> list[str]:
            if not self.has_failed:
                self.has_failed = True
                raise ZeroDivisionError
            return await super().resolve()

    address = await pools.serve(ScriptedDecode())
    pool = WorkerPool(MODEL, Resolver([]), Broken([address]), refresh_seconds=0.1)
    async with pool.running():
        await until(pool, lambda: any(worker.ready for worker in pool.decode_workers))
