"""Opening and closing the transfers takes a while; the event loop goes on meanwhile."""

import asyncio
import threading

import pytest
import torch

from chassis.lifecycle import CannotStart
from kvtransfer.errors import TransportUnavailable
from kvtransfer.transport.local import LocalFabric, LocalTransport
from worker.transfers import open_transfers

WAIT = 20.0
POOL = torch.zeros(8, 4)


class SlowTransport(LocalTransport):
    """Opens and closes only once the event loop has had its turn."""

    may_go_on: threading.Event

    def __init__(self, pool: torch.Tensor, name: str) -> None:
        assert self.may_go_on.wait(WAIT), "the event loop stood still"
        super().__init__(pool, name, LocalFabric())

    def close(self) -> None:
        assert self.may_go_on.wait(WAIT), "the event loop stood still"
        super().close()


async def test_the_event_loop_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.transports.NixlTransport", SlowTransport)
    loop, failures = asyncio.get_running_loop(), list[BaseException]()
    SlowTransport.may_go_on = threading.Event()
    loop.call_soon(SlowTransport.may_go_on.set)
    async with open_transfers(POOL, (), b"boot", "auto", failures.append) as transfers:
        assert transfers.alive
        SlowTransport.may_go_on.clear()
        loop.call_soon(SlowTransport.may_go_on.set)
    assert not transfers.alive
    assert failures == []


async def test_a_machine_that_cannot_move_blocks_stops_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise TransportUnavailable("no UCX here")

    monkeypatch.setattr("worker.transports.NixlTransport", refuse)
    with pytest.raises(CannotStart, match="no UCX here"):
        async with open_transfers(POOL, (), b"boot", "auto", lambda error: None):
            pass
