"""A prefill and a decode side on loopback, over each transport."""

import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import torch

from kvtransfer.transfer_thread import TransferThread
from kvtransfer.transport.base import Transport
from kvtransfer.transport.local import LocalFabric, LocalTransport
from kvtransfer.transport.nixl import NixlTransport
from tests.kvtransfer.stage import NUM_BLOCKS, Stage, new_pool

_agent_numbers = itertools.count()


@pytest.fixture
def fabric() -> LocalFabric:
    return LocalFabric()


@pytest.fixture(params=["local", "nixl"])
def make_transport(
    request: pytest.FixtureRequest, fabric: LocalFabric
) -> Callable[[torch.Tensor], Transport]:
    """Makes transports of one kind that can reach one another."""

    def make(pool: torch.Tensor) -> Transport:
        # NIXL refuses a name twice; boot ids see to that in the services.
        name = f"{os.getpid()}-{next(_agent_numbers)}"
        if request.param == "local":
            return LocalTransport(pool, name, fabric)
        return NixlTransport(pool, name)

    return make


@pytest.fixture
def threads(
    make_transport: Callable[[torch.Tensor], Transport],
) -> Iterator[Callable[[torch.Tensor], TransferThread]]:
    """Makes running transfer threads; stops them after the test."""
    made: list[TransferThread] = []

    def make(pool: torch.Tensor) -> TransferThread:
        thread = TransferThread([make_transport(pool)], max_piece_bytes=16 << 10)
        thread.start()
        made.append(thread)
        return thread

    yield make
    for thread in made:
        thread.stop()


@pytest.fixture
async def stage(threads: Callable[[torch.Tensor], TransferThread]) -> AsyncIterator[Stage]:
    """Both sides, not paired yet."""
    torch.manual_seed(0)
    stage = Stage(threads(new_pool(NUM_BLOCKS, filled=True)), threads(new_pool(NUM_BLOCKS)))
    await stage.open()
    yield stage
    await stage.close()


@pytest.fixture
async def local_stage(fabric: LocalFabric) -> AsyncIterator[Stage]:
    """Both sides on the local transport, whose bytes move only when the test lets them."""
    torch.manual_seed(0)
    pools = new_pool(NUM_BLOCKS, filled=True), new_pool(NUM_BLOCKS)
    threads = [
        TransferThread([LocalTransport(pool, name, fabric)])
        for name, pool in zip(("prefill", "decode"), pools, strict=True)
    ]
    for thread in threads:
        thread.start()
    stage = Stage(*threads, fabric=fabric)
    await stage.open()
    yield stage
    await stage.close()
    for thread in threads:
        thread.stop()
