"""The supervisor with small real services: start, death, restart, drain."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from baton.v1 import worker_pb2
from batonctl.errors import CommandError
from batonctl.member import Member, MemberState
from batonctl.service_spec import Role, ServiceSpec
from batonctl.stack import Stack
from batonctl.stack_events import Died, LogLine, Recovered, StackEvent, Started

MakeSpecs = Callable[..., list[ServiceSpec]]


class Record:
    """Events so far, and a way to wait for one."""

    def __init__(self) -> None:
        self.events: list[StackEvent] = []
        self._change = asyncio.Event()

    def __call__(self, event: StackEvent) -> None:
        self.events.append(event)
        self._change.set()

    async def wait_for(self, kind: type[StackEvent]) -> None:
        while not any(isinstance(event, kind) for event in self.events):
            self._change.clear()
            await self._change.wait()


@asynccontextmanager
async def running(specs: list[ServiceSpec], record: Record) -> AsyncIterator[Stack]:
    with Stack(specs, drain_grace=10, emit=record) as stack:
        stack.supervise()
        yield stack
        pids = [member.pid for member in stack.members if member.pid]
        await stack.stop(asyncio.Event())
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)


def words(journal: Path, verb: str) -> list[str]:
    lines = [line.split() for line in journal.read_text().splitlines()]
    return [who for who, what, _ in lines if what == verb]


async def test_all_services_become_ready_and_drain_door_first(
    make_specs: MakeSpecs, journal: Path
) -> None:
    async with running(make_specs(), Record()) as stack:
        await stack.wait_ready(60)
        assert {member.state for member in stack.members} == {MemberState.READY}
    assert {member.state for member in stack.members} == {MemberState.STOPPED}
    assert words(journal, "stopped") == ["GenerationService", "PrefillService", "DecodeService"]


async def test_a_killed_service_is_reported_with_its_last_lines_and_started_again(
    make_specs: MakeSpecs, journal: Path
) -> None:
    record = Record()
    async with running(make_specs(), record) as stack:
        await stack.wait_ready(60)
        decode = stack.members[2]
        assert decode.pid is not None
        os.kill(decode.pid, signal.SIGKILL)
        await record.wait_for(Recovered)
        await stack.wait_ready(60)
        assert decode.restarts == 1
    died = next(event for event in record.events if isinstance(event, Died))
    assert (died.service, died.cause) == ("decode", "killed by SIGKILL")
    assert died.restart_delay == 0.5
    assert died.last_lines[-1].startswith("DecodeService listens at")
    assert Started("decode") in record.events
    assert words(journal, "started").count("DecodeService") == 2


async def test_a_service_that_cannot_start_ends_the_wait_and_is_not_tried_again(
    make_specs: MakeSpecs, journal: Path
) -> None:
    record = Record()
    async with running(make_specs(prefill="die-at-start"), record) as stack:
        with pytest.raises(CommandError, match=r"prefill could not start \(exit code 1\)"):
            await stack.wait_ready(60)
    died = next(event for event in record.events if isinstance(event, Died))
    assert died.last_lines[-1] == "the setting is wrong"
    assert died.restart_delay is None
    assert words(journal, "started").count("PrefillService") == 1


async def test_a_service_that_never_gets_ready_is_named_when_time_is_up(
    make_specs: MakeSpecs,
) -> None:
    async with running(make_specs(decode="never-ready"), Record()) as stack:
        gateway, prefill, _ = stack.members
        await stack.until(lambda: gateway.state == prefill.state == MemberState.READY)
        with pytest.raises(CommandError, match=r"not ready after 0\.01 s: decode"):
            await stack.wait_ready(0.01)


async def test_a_service_that_ignores_the_drain_is_ended_on_demand(
    make_specs: MakeSpecs, journal: Path
) -> None:
    record = Record()
    at_once = asyncio.Event()
    with Stack(make_specs(gateway="deaf"), drain_grace=600, emit=record) as stack:
        stack.supervise()
        await stack.wait_ready(60)
        stopping = asyncio.create_task(stack.stop(at_once))
        await stack.until(lambda: stack.members[0].state == MemberState.DRAINING)
        at_once.set()
        await stopping
    assert {member.state for member in stack.members} == {MemberState.STOPPED}
    assert sorted(words(journal, "stopped")) == ["DecodeService", "PrefillService"]


async def test_the_load_of_a_process_ends_with_it() -> None:
    command = (sys.executable, "-c", "pass")
    member = Member(
        ServiceSpec("decode", Role.DECODE, command, "127.0.0.1:1", dict(os.environ)),
        Record(),
        lambda: None,
    )
    member.spawn()
    member.set_load(worker_pb2.WorkerLoad(running=1))
    await member.supervise()
    assert (member.state, member.load) == (MemberState.STOPPED, None)


async def test_logs_of_all_services_are_events(make_specs: MakeSpecs) -> None:
    record = Record()
    async with running(make_specs(), record) as stack:
        await stack.wait_ready(60)
    logs = {event.service for event in record.events if isinstance(event, LogLine)}
    assert logs == {"gateway", "prefill", "decode"}


def test_leaving_the_block_on_an_error_leaves_no_process(make_specs: MakeSpecs) -> None:
    with pytest.raises(RuntimeError), Stack(make_specs(), drain_grace=1, emit=print) as stack:
        pids = [member.pid for member in stack.members]
        raise RuntimeError
    for pid in pids:
        assert pid is not None
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
