"""Which prefill and which decode worker serve an attempt."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from chassis.errors import Unavailable
from chassis.layout_differences import layout_differences
from gateway.worker import Worker
from modelfiles.short_digest import short_digest


@dataclass(frozen=True, slots=True)
class Route:
    """Where an attempt goes: at least to one worker.

    ``decode`` is None where prefill alone can answer it, ``prefill`` where none is left and decode
    computes the prompt itself (protocol 5.5).
    """

    prefill: Worker | None
    decode: Worker | None

    @property
    def workers(self) -> tuple[Worker, ...]:
        return tuple(worker for worker in (self.prefill, self.decode) if worker is not None)


@dataclass(frozen=True, slots=True)
class Demand:
    """What an attempt needs: ``num_tokens`` of prompt now, ``max_total_tokens`` in the end.

    ``avoid`` holds boot ids that just refused it; they are taken only where nobody else is left.
    ``checkpoint`` is the digest of the only one that may continue the output there is, if there is.
    """

    num_tokens: int
    max_total_tokens: int
    hand_off: bool
    avoid: frozenset[bytes] = frozenset()
    checkpoint: bytes | None = None


class WorkerDirectory(Protocol):
    """Who is there; the worker pool is one."""

    @property
    def prefill_workers(self) -> Sequence[Worker]: ...

    @property
    def decode_workers(self) -> Sequence[Worker]: ...

    def why_none(self, role: str) -> str:
        """Says for people why no worker of ``role`` is ready."""
        ...

    def may_return(self, role: str) -> bool:
        """Whether a worker of ``role`` that is missing may be back at once."""
        ...


class Router:
    """Picks the pair that should answer soonest, of those whose KV layouts are equal."""

    def __init__(self, directory: WorkerDirectory, rng: random.Random | None = None) -> None:
        self._directory = directory
        self._rng = rng or random.Random()

    def choose(self, demand: Demand) -> Route:
        """Raises Unavailable at once, with the reason, where no pair can take the attempt."""
        prefill = [worker for worker in self._directory.prefill_workers if worker.ready]
        if not prefill:
            decode = _fitting(self._ready_decode(), demand, "decode")
            return Route(None, self._least(decode, decode_seconds(decode), demand))
        prefill = _fitting(prefill, demand, "prefill")
        if not demand.hand_off:
            return Route(self._least(prefill, prefill_seconds(prefill, demand), demand), None)
        decode = _fitting(self._ready_decode(), demand, "decode")
        layouts = {w.identity.layout_digest for w in prefill}
        layouts &= {w.identity.layout_digest for w in decode}
        if not layouts:
            raise _incompatible(prefill, decode)
        return self._best_pair(prefill, decode, layouts, demand)

    def max_context_tokens(self) -> int | None:
        """Most tokens of prompt and output that some ready pair has room for, or a decode worker
        where no prefill worker is left; None where nobody is."""
        rooms = [
            min(p.identity.max_context_tokens, d.identity.max_context_tokens)
            for p, d in self._ready_pairs()
        ]
        if not any(worker.ready for worker in self._directory.prefill_workers):
            decode = self._directory.decode_workers
            rooms = [worker.identity.max_context_tokens for worker in decode if worker.ready]
        return max(rooms, default=None)

    @property
    def decode_may_return(self) -> bool:
        """Whether there may be a decode worker in a moment, though none is ready now."""
        return not self.num_ready()[1] and self._directory.may_return("decode")

    def pool_tokens(self) -> int | None:
        """Tokens whose KV the ready decode workers hold together; None where there are none."""
        pools = [w.pool_tokens for w in self._directory.decode_workers if w.ready]
        return sum(pools) if pools else None

    def num_ready(self) -> tuple[int, int]:
        """Prefill and decode workers that could be chosen now."""
        directory = self._directory
        return sum(w.ready for w in directory.prefill_workers), sum(
            w.ready for w in directory.decode_workers
        )

    def has_pair(self) -> bool:
        """Whether some request could be served now."""
        return next(self._ready_pairs(), None) is not None

    def _ready_pairs(self) -> Iterator[tuple[Worker, Worker]]:
        decode = [worker for worker in self._directory.decode_workers if worker.ready]
        for p in self._directory.prefill_workers:
            if p.ready:
                yield from (
                    (p, d) for d in decode if d.identity.layout_digest == p.identity.layout_digest
                )

    def _ready_decode(self) -> list[Worker]:
        ready = [worker for worker in self._directory.decode_workers if worker.ready]
        if not ready:
            raise Unavailable(self._directory.why_none("decode"), reason="NO_DECODE_WORKER")
        return ready

    def _best_pair(
        self,
        prefill: list[Worker],
        decode: list[Worker],
        layouts: set[bytes],
        demand: Demand,
    ) -> Route:
        best: tuple[tuple[bool, float], Route] | None = None
        for layout in layouts:
            p_workers = [w for w in prefill if w.identity.layout_digest == layout]
            d_workers = [w for w in decode if w.identity.layout_digest == layout]
            p_costs, d_costs = prefill_seconds(p_workers, demand), decode_seconds(d_workers)
            p = self._least(p_workers, p_costs, demand)
            d = self._least(d_workers, d_costs, demand)
            avoided = p.identity.boot_id in demand.avoid or d.identity.boot_id in demand.avoid
            rank = (avoided, p_costs[p.identity.boot_id] + d_costs[d.identity.boot_id])
            if best is None or rank < best[0]:
                best = (rank, Route(p, d))
        assert best is not None, "an empty set of layouts was refused above"
        return best[1]

    def _least(self, workers: list[Worker], costs: dict[bytes, float], demand: Demand) -> Worker:
        # Equal workers are drawn by lot, so that several gateways do not all pick the first one.
        return min(
            workers,
            key=lambda worker: (
                worker.identity.boot_id in demand.avoid,
                worker.available_tokens < demand.num_tokens,
                costs[worker.identity.boot_id],
                self._rng.random(),
            ),
        )


def _fitting(workers: list[Worker], demand: Demand, role: str) -> list[Worker]:
    """Those of ``workers`` that have the room and, where it counts, the checkpoint."""
    if demand.checkpoint is not None:
        workers = [w for w in workers if w.identity.checkpoint_digest == demand.checkpoint]
        if not workers:
            raise Unavailable(
                f"no ready {role} worker has checkpoint {short_digest(demand.checkpoint)}, "
                f"which the answer began with",
                reason="NO_COMPATIBLE_WORKERS",
            )
    fitting = [w for w in workers if w.identity.max_context_tokens >= demand.max_total_tokens]
    if not fitting:
        raise Unavailable(
            f"no ready {role} worker has room for {demand.max_total_tokens} tokens",
            reason="CONTEXT_TOO_LONG_FOR_WORKERS",
        )
    return fitting


def prefill_seconds(workers: list[Worker], demand: Demand) -> dict[bytes, float]:
    """Expected seconds to the first token, by boot id: the queue and the prompt over the rate."""
    usual = _usual_rate(workers, default=1000.0)
    return {
        w.identity.boot_id: (w.pending_tokens + demand.num_tokens) / (w.rate or usual)
        for w in workers
    }


def decode_seconds(workers: list[Worker]) -> dict[bytes, float]:
    """Load of each worker by boot id: its step time, once for every request that shares a step."""
    usual = _usual_rate(workers, default=0.01)
    return {w.identity.boot_id: (w.requests + 1) * (w.rate or usual) for w in workers}


def _incompatible(prefill: Sequence[Worker], decode: Sequence[Worker]) -> Unavailable:
    """The error where no two workers can be paired; says what tells them apart."""
    everyone = [worker.identity for worker in (*prefill, *decode)]
    checkpoints = {w.identity.checkpoint_digest for w in prefill}
    if checkpoints.isdisjoint(w.identity.checkpoint_digest for w in decode):
        what = "checkpoint"
        shown = ", ".join(f"{i.name} has {short_digest(i.checkpoint_digest)}" for i in everyone)
    else:
        what = "KV layout"
        shown = layout_differences([(i.name, i.layout) for i in everyone])
    return Unavailable(
        f"no prefill worker has the {what} of a decode worker ({shown})",
        reason="NO_COMPATIBLE_WORKERS",
    )


def _usual_rate(workers: list[Worker], default: float) -> float:
    known = [w.rate for w in workers if w.rate]
    return sum(known) / len(known) if known else default
