"""The error tree and its table."""

import pytest

from chassis.errors import FailedPrecondition, NotFound, ServiceError, Unavailable
from kvtransfer.errors import (
    TRANSFER_ERRORS,
    LayoutMismatch,
    PeerLost,
    TransferError,
    UnknownAttempt,
)


def test_the_table_is_total() -> None:
    assert TRANSFER_ERRORS.missing(TransferError) == []


@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        (LayoutMismatch("dtype", "a", "b"), FailedPrecondition, "LAYOUT_MISMATCH"),
        (UnknownAttempt("x"), NotFound, "ATTEMPT_UNKNOWN"),
        (PeerLost("x"), Unavailable, "PEER_LOST"),
    ],
    ids=["layout", "attempt", "peer"],
)
def test_errors_keep_their_words_and_get_a_reason(
    error: TransferError, kind: type[ServiceError], reason: str
) -> None:
    translated = TRANSFER_ERRORS.translate(error)
    assert type(translated) is kind
    assert translated.reason == reason
    assert translated.message == str(error)
