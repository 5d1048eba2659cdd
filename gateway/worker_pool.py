"""Every worker this gateway process can reach."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

from baton.v1 import worker_pb2
from gateway.backoff import keep_trying
from gateway.resolver import Resolver
from gateway.served_model import ServedModel
from gateway.turns import Turns
from gateway.worker import Worker
from gateway.worker_link import WorkerLink

log = logging.getLogger(__name__)

_ROLES = {
    "prefill": worker_pb2.WORKER_ROLE_PREFILL,
    "decode": worker_pb2.WORKER_ROLE_DECODE,
}


class WorkerPool:
    """Links to the workers of both roles, for one model. Event loop only.

    Names are resolved again every ``refresh_seconds``. An address that left its name is followed
    for as long as a worker answers there.
    """

    def __init__(
        self,
        model: ServedModel,
        prefill: Resolver,
        decode: Resolver,
        refresh_seconds: float,
        on_lost: Callable[[str, str], None] = lambda role, reason: None,
    ) -> None:
        """``on_lost`` hears the role of a worker that is lost, and the reason."""
        self._model = model
        self._resolvers = {"prefill": prefill, "decode": decode}
        self._refresh_seconds = refresh_seconds
        self._on_lost = on_lost
        self._turns = Turns()
        self._links: dict[str, dict[str, WorkerLink]] = {"prefill": {}, "decode": {}}
        self._tasks: dict[WorkerLink, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()

    @property
    def prefill_workers(self) -> Sequence[Worker]:
        """Prefill workers that are there, ready or not."""
        return self._workers("prefill")

    @property
    def decode_workers(self) -> Sequence[Worker]:
        """Decode workers that are there, ready or not."""
        return self._workers("decode")

    def why_none(self, role: str) -> str:
        """Says for people why no worker of ``role`` is ready."""
        links = self._links[role].values()
        if not links:
            return f"no {role} worker is known"
        problems = [
            f"{link.address}: {link.problem if link.worker is None else link.worker.problem}"
            for link in links
        ]
        return f"no {role} worker is ready ({'; '.join(problems)})"

    def may_return(self, role: str) -> bool:
        """Whether a worker that is missing may be back at once."""
        return any(link.may_return for link in self._links[role].values())

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Follows the workers while entered."""
        refreshers = [
            asyncio.create_task(keep_trying(f"look-up of {role}", partial(self._refresh, role)))
            for role in _ROLES
        ]
        try:
            yield
        finally:
            tasks = [*refreshers, *self._tasks.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Returns once ``condition``, which looks at the workers, holds."""
        while not condition():
            await self._changed.wait()

    def _workers(self, role: str) -> list[Worker]:
        return [link.worker for link in self._links[role].values() if link.worker is not None]

    def _notify(self) -> None:
        self._pair_compatible()
        self._changed.set()
        self._changed = asyncio.Event()

    def _pair_compatible(self) -> None:
        """Pairs every two workers that may be routed to together (protocol 2.4)."""
        for decode in self.decode_workers:
            for prefill in self.prefill_workers:
                identity = prefill.identity
                if decode.session and identity.layout_digest == decode.identity.layout_digest:
                    decode.session.pair(identity.address, identity.boot_id)

    async def _refresh(self, role: str) -> None:
        resolver = self._resolvers[role]
        while True:
            addresses = await resolver.resolve()
            for address in addresses:
                if address not in self._links[role]:
                    self._follow(role, address)
            if resolver.is_fixed:
                return
            for link in [*self._links[role].values()]:
                if link.address not in addresses and link.worker is None:
                    del self._links[role][link.address]
                    self._tasks.pop(link).cancel()
            await asyncio.sleep(self._refresh_seconds)

    def _follow(self, role: str, address: str) -> None:
        def find_known(boot_id: bytes) -> Worker | None:
            known = (w for w in self._workers(role) if w.identity.boot_id == boot_id)
            return next(known, None)

        link = WorkerLink(
            address,
            _ROLES[role],
            self._model,
            self._turns,
            find_known,
            on_change=self._notify,
            on_lost=partial(self._on_lost, role),
        )
        self._links[role][address] = link
        self._tasks[link] = asyncio.create_task(keep_trying(f"link to {address}", link.run))
