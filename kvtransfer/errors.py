"""What can go wrong while KV blocks change hands, and what a service says about it.

TransferError
├── TransportUnavailable    this machine cannot move blocks at all: the worker refuses to start
├── TransferClosed          the transfer thread has stopped, or failed and took every read along
├── PeerError               one peer cannot be read from now
│   ├── PeerUnknown             nothing is known about it, or it has been removed
│   ├── PeerUnreachable         its description is fine, but no byte can be moved
│   └── PeerLost                it died, or its connection did
├── ReadCancelled           the reader gave up its own read
├── BlocksCorrupt           what arrived is not what was sent
├── PairingRefused          two workers must not exchange blocks
│   ├── LayoutMismatch          their layouts differ: names the field and both values
│   └── StaleBootId             the message was meant for another incarnation
├── AttemptError            the prefill side refuses a message about an attempt
│   ├── DuplicateAttempt        the attempt, or its Pull, exists already
│   ├── UnknownAttempt          no Prefill came for it in time, or it has ended
│   ├── TokensDiffer            both legs were given different prompts
│   └── MessageOutOfOrder       the peer broke the protocol
└── PullFailed              the decode side's attempt is over: why, and what stays fenced
"""

from chassis.error_table import ErrorRow, ErrorTable
from chassis.errors import (
    Aborted,
    AlreadyExists,
    Cancelled,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    ServiceError,
    Unavailable,
)
from kvtransfer.fence import Fence


class TransferError(Exception):
    """Base of every error that this package raises on purpose."""


class TransportUnavailable(TransferError):
    """Blocks cannot be moved on this machine; the message says what to check."""


class TransferClosed(TransferError):
    """The transfer thread does no work any more."""


class PeerError(TransferError):
    """One peer cannot be read from now; others are not concerned."""


class PeerUnknown(PeerError):
    """Nothing is known about the peer, or it has been removed."""


class PeerUnreachable(PeerError):
    """No byte could be moved from the peer, though its description is fine."""


class PeerLost(PeerError):
    """The peer died or its connection did. What was being read from it is not complete."""


class ReadCancelled(TransferError):
    """The reader gave up its own read."""


class BlocksCorrupt(TransferError):
    """Blocks have arrived whose checksums are not those of the blocks that were read."""


class PairingRefused(TransferError):
    """These two workers must not exchange blocks."""


class LayoutMismatch(PairingRefused):
    """Blocks mean different things on both sides."""

    def __init__(self, field: str, decode: object, prefill: object) -> None:
        super().__init__(
            f"KV layouts differ in {field}: decode has {decode!r}, prefill has {prefill!r}"
        )
        self.field = field
        self.decode = decode
        self.prefill = prefill


class StaleBootId(PairingRefused):
    """The message was meant for another incarnation of this worker."""


class AttemptError(TransferError):
    """The prefill side refuses a message about an attempt."""


class DuplicateAttempt(AttemptError):
    """The attempt, or a Pull of it, exists already."""


class UnknownAttempt(AttemptError):
    """No Prefill came for the attempt in time, or it has ended."""


class TokensDiffer(AttemptError):
    """Both legs of the attempt were given different prompts."""


class MessageOutOfOrder(AttemptError):
    """The peer sent a message that the protocol does not allow at this point."""


class PullFailed(TransferError):
    """A pull is over without its KV.

    ``error`` says why, as the decode worker may pass it on. The blocks of ``fence`` must not be
    reused before it lifts (protocol 4.1); all other destination blocks are free at once.
    """

    def __init__(self, error: ServiceError, *, fence: Fence) -> None:
        super().__init__(error.message)
        self.error = error
        self.fence = fence

    @property
    def reason(self) -> str:
        """The UPPER_SNAKE reason of ``error``."""
        return self.error.reason


TRANSFER_ERRORS = ErrorTable(
    [
        ErrorRow(TransportUnavailable, Unavailable, "TRANSPORT_UNAVAILABLE"),
        ErrorRow(TransferClosed, Unavailable, "TRANSFER_CLOSED"),
        ErrorRow(PeerUnknown, Unavailable, "PEER_UNKNOWN"),
        ErrorRow(PeerUnreachable, Unavailable, "PEER_UNREACHABLE"),
        ErrorRow(PeerLost, Unavailable, "PEER_LOST"),
        ErrorRow(PeerError, Unavailable, "PEER_UNAVAILABLE"),
        ErrorRow(ReadCancelled, Cancelled, "READ_CANCELLED"),
        ErrorRow(BlocksCorrupt, Aborted, "BLOCKS_CORRUPT"),
        ErrorRow(LayoutMismatch, FailedPrecondition, "LAYOUT_MISMATCH"),
        ErrorRow(StaleBootId, FailedPrecondition, "BOOT_ID_STALE"),
        ErrorRow(PairingRefused, FailedPrecondition, "PAIRING_REFUSED"),
        ErrorRow(DuplicateAttempt, AlreadyExists, "ATTEMPT_EXISTS"),
        ErrorRow(UnknownAttempt, NotFound, "ATTEMPT_UNKNOWN"),
        ErrorRow(TokensDiffer, FailedPrecondition, "TOKENS_DIFFER"),
        ErrorRow(MessageOutOfOrder, InvalidArgument, "MESSAGE_OUT_OF_ORDER"),
        ErrorRow(AttemptError, FailedPrecondition, "ATTEMPT_REFUSED"),
        # A worker answers with ``error`` of the exception; reaching the border is our own bug.
        ErrorRow(PullFailed, Internal, "PULL_FAILED"),
    ]
)
"""How a service that serves or uses this package answers its errors."""
