"""How attempts fail, and which failures a new attempt can mend."""

from typing import TypeGuard

import grpc
import grpc.aio

from chassis.errors import (
    Aborted,
    Internal,
    ResourceExhausted,
    ServiceError,
    Unavailable,
)
from chassis.status import from_rpc_error

# What a leg says where it only saw the other one end, or not answer: the reason is with that one.
#
#   what happened               prefill says     decode says
#   prefill ended the attempt   the reason       ATTEMPT_UNKNOWN, LEASE_LOST, PULL_CLOSED, ..
#   prefill died or is stuck    (nothing)        PEER_*, *_TIMEOUT, UNAVAILABLE
#   decode gave the pull up     PULL_BROKEN      the reason
_ECHOES = frozenset(
    {
        "PULL_BROKEN",
        "ATTEMPT_UNKNOWN",
        "LEASE_LOST",
        "PULL_CLOSED",
        "PEER_LOST",
        "PEER_UNAVAILABLE",
        "PEER_UNKNOWN",
        "PEER_UNREACHABLE",
        "PAIRING_TIMEOUT",
        "READ_TIMEOUT",
        "RELEASE_TIMEOUT",
        # gRPC's own word for a connection that broke.
        "UNAVAILABLE",
    }
)


class Preempted(Aborted):
    """The decode worker took the attempt's blocks for older requests (protocol 5.3)."""

    def __init__(self) -> None:
        super().__init__("the decode worker ran out of blocks", reason="PREEMPTED")


def prefill_error(error: grpc.aio.AioRpcError, worker: str) -> ServiceError:
    """The typed error of a Prefill call; where gRPC itself ended it, the worker is lost."""
    typed = from_rpc_error(error)
    if isinstance(typed, Unavailable) and typed.reason == grpc.StatusCode.UNAVAILABLE.name:
        return prefill_lost(worker, typed.message)
    return typed


def prefill_lost(worker: str, detail: str) -> Unavailable:
    """The error for a prefill worker that went away during a call."""
    return Unavailable(f"prefill worker {worker} was lost: {detail}", reason="PREFILL_WORKER_LOST")


def violation(message: str) -> Internal:
    """The error for a worker that breaks the protocol."""
    return Internal(message, reason="PROTOCOL_VIOLATION")


def is_echo(error: ServiceError) -> bool:
    """Whether a leg failed for a reason that the other leg knows."""
    return error.reason in _ECHOES


def is_draining(error: ServiceError | None) -> TypeGuard[Unavailable]:
    """Whether a worker stops in good order: it took no more, or handed over what it had."""
    return isinstance(error, Unavailable) and error.reason == "WORKER_DRAINING"


def is_revoked(error: ServiceError) -> bool:
    """Whether the prefill worker took a computed prompt's blocks for one that decode has room
    for (protocol 3.3)."""
    return isinstance(error, Aborted) and error.reason == "LEASE_REVOKED"


def no_other_worker(draining: Unavailable, error: ServiceError) -> Unavailable:
    """The end of a request that a draining worker sent away, and that nobody else can take."""
    return Unavailable(f"{draining.message}; {error.message}", reason=draining.reason)


def is_retryable(error: ServiceError) -> bool:
    """Whether another attempt, perhaps on other workers, may succeed where this one failed.

    A worker says ABORTED for just that. What is UNAVAILABLE is lost or cannot be reached, and a
    full worker, a stale boot id, or a step that failed is no verdict on the request either, nor
    is a hand-off that failed between two workers that are both there.
    """
    is_none = isinstance(error, Aborted | ResourceExhausted | Unavailable)
    return is_none or is_echo(error) or error.reason in ("BOOT_ID_STALE", "STEP_FAILED")


def is_fault(error: ServiceError) -> bool:
    """Whether a worker failed, as opposed to one that is full, drains, or needs the room."""
    if is_draining(error) or error.reason in ("PREEMPTED", "LEASE_REVOKED", "BOOT_ID_STALE"):
        return False
    return is_retryable(error) and not isinstance(error, ResourceExhausted)
