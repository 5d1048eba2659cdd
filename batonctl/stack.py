"""The supervisor: runs all services of a stack as child processes."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import NoReturn, Self

from batonctl.errors import CommandError
from batonctl.member import Member, MemberState
from batonctl.service_spec import Role, ServiceSpec
from batonctl.stack_events import StackEvent

# Beyond the services' own drain grace, before the supervisor stops asking.
GRACE_MARGIN = 5.0
# What a service has to end after its first, and after its second SIGTERM, when haste is asked for.
# Apart, because signals of one kind that arrive together are one signal.
STOP_AT_ONCE_WAITS = (0.5, 2.0)


class Stack:
    """Starts services in parallel, keeps them running, and drains them in order.

    with Stack(specs, drain_grace=30, emit=print) as stack:   # spawns; needs no event loop yet
        asyncio.run(serve(stack))                             # supervise, wait_ready, .., stop

    Leaving the `with` block kills whatever `stop` has not ended.
    """

    def __init__(
        self,
        specs: Sequence[ServiceSpec],
        *,
        drain_grace: float,
        emit: Callable[[StackEvent], None],
    ) -> None:
        self._drain_grace = drain_grace
        self._change = asyncio.Event()
        self._running: list[asyncio.Task[None]] = []
        self._watches: dict[Member, list[asyncio.Task[NoReturn]]] = {}
        self.members = [Member(spec, emit, self._change.set) for spec in specs]

    def __enter__(self) -> Self:
        try:
            for member in self.members:
                member.spawn()
        except BaseException:
            self._kill_now()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._kill_now()

    def _kill_now(self) -> None:
        for member in self.members:
            member.kill_now()

    def supervise(self) -> None:
        """Begins to watch the processes; call once, on the event loop that all else runs on."""
        # Late, so that the services load while we do.
        from batonctl.watch import watch_load, watch_readiness

        for member in self.members:
            address, role = member.spec.address, member.spec.role
            watches = [watch_readiness(address, role.health_service, member.set_serving)]
            if role != Role.GATEWAY:
                watches.append(watch_load(address, member.set_load))
            self._watches[member] = [asyncio.create_task(watch) for watch in watches]
            self._running.append(asyncio.create_task(member.supervise()))

    async def wait_ready(self, limit: float) -> None:
        """Returns when all services are ready; CommandError if one dies or `limit` s pass."""
        try:
            async with asyncio.timeout(limit):
                await self.until(self._check_ready)
        except TimeoutError:
            waiting = [m.spec.name for m in self.members if m.state != MemberState.READY]
            raise CommandError(
                f"not ready after {limit:g} s: {', '.join(waiting)}",
                hint="see the log lines above; a large model may need a longer --start-timeout",
            ) from None

    def _check_ready(self) -> bool:
        for member in self.members:
            if member.failed_start is not None:
                raise CommandError(
                    f"{member.spec.name} could not start ({member.failed_start.cause})",
                    hint="the cause is in its last log lines above; `baton doctor` checks the rest",
                )
        return all(member.state == MemberState.READY for member in self.members)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Returns when the condition holds; looks at every change of a member."""
        while not condition():
            self._change.clear()
            await self._change.wait()

    async def stop(self, at_once: asyncio.Event) -> None:
        """Drains gateway, then prefill, then decode; returns when no process is left.

        When the drain grace is over, or `at_once` is set, what still runs is ended.
        """
        urgent = asyncio.create_task(at_once.wait())
        draining = asyncio.create_task(self._drain_in_order())
        try:
            await asyncio.wait(
                {urgent, draining},
                timeout=self._drain_grace + GRACE_MARGIN,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            urgent.cancel()
            draining.cancel()
        if not await self._ended(self.members, within=0):
            await self._end_all()
        await self._stop_watching(self.members)

    async def _drain_in_order(self) -> None:
        for role in Role:
            members = [member for member in self.members if member.spec.role == role]
            # A server waits a moment for streams that are open when it stops, such as ours.
            await self._stop_watching(members)
            for member in members:
                member.drain()
            await self._ended(members, within=None)

    async def _stop_watching(self, members: Iterable[Member]) -> None:
        watches = [watch for member in members for watch in self._watches.pop(member, ())]
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)

    async def _end_all(self) -> None:
        for wait in STOP_AT_ONCE_WAITS:
            for member in self.members:
                member.drain()
            if await self._ended(self.members, within=wait):
                return
        for member in self.members:
            member.kill()
        await self._ended(self.members, within=None)

    async def _ended(self, members: Iterable[Member], within: float | None) -> bool:
        wanted = set(members)
        tasks = [task for m, task in zip(self.members, self._running, strict=True) if m in wanted]
        if not tasks:
            return True
        _, running = await asyncio.wait(tasks, timeout=within)
        return not running
