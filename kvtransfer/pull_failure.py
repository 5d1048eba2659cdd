"""Why a pull failed, in the words of a service, and what to do about it."""

import logging

import grpc.aio

from chassis.errors import (
    Aborted,
    Cancelled,
    Internal,
    ServiceError,
    Unavailable,
)
from chassis.status import from_rpc_error
from kvtransfer.errors import TRANSFER_ERRORS, MessageOutOfOrder, PeerError, TransferError

log = logging.getLogger(__name__)

_RESTARTED = "BOOT_ID_STALE"


def explain(error: BaseException) -> ServiceError:
    """The error as the decode worker may pass it on."""
    match error:
        case ServiceError():
            return error
        case grpc.aio.AioRpcError():
            return from_rpc_error(error)
        case MessageOutOfOrder():
            return Internal(f"the prefill worker broke the protocol: {error}", reason="PROTOCOL")
        case TransferError():
            return TRANSFER_ERRORS.translate(error)
        case TimeoutError():
            return Unavailable(
                "the prefill worker did not answer the handshake in time", reason="PAIRING_TIMEOUT"
            )
        case _:
            log.error("a pull failed on our side", exc_info=error)
            return Internal("pulling the KV failed", reason="INTERNAL")


def means_peer_lost(error: BaseException) -> bool:
    """Whether no byte or message of this incarnation can be expected any more."""
    if isinstance(error, PeerError):
        return True
    if not isinstance(error, grpc.aio.AioRpcError):
        return False
    status = from_rpc_error(error)
    # gRPC's own UNAVAILABLE has no ErrorInfo; its reason is then the name of the code.
    broken = isinstance(status, Unavailable) and status.reason == grpc.StatusCode.UNAVAILABLE.name
    return broken or status.reason == _RESTARTED


def read_timeout(num_blocks: int, seconds: float) -> ServiceError:
    """A read that did not end in time."""
    return Unavailable(f"{num_blocks} blocks were not read in {seconds} s", reason="READ_TIMEOUT")


def release_timeout(seconds: float) -> ServiceError:
    """Released did not come in time (protocol 3.6)."""
    return Aborted(f"no release within {seconds} s of Done", reason="RELEASE_TIMEOUT")


def lease_lost() -> ServiceError:
    """Released came, but the lease had ended before Done (protocol 3.6)."""
    return Aborted("the lease ended before all blocks were read", reason="LEASE_LOST")


def pull_closed() -> ServiceError:
    """The prefill worker ended the call, in good order but too early."""
    return Unavailable("the prefill worker closed the pull before its end", reason="PULL_CLOSED")


def given_up() -> ServiceError:
    """Its owner cancelled the pull."""
    return Cancelled("the pull was given up", reason="PULL_CANCELLED")
