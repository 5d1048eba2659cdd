"""Errors that travel inside messages arrive as what they were."""

import pytest

from baton.v1 import decode_pb2
from chassis.errors import Aborted, Internal, ResourceExhausted, ServiceError
from chassis.failure import failure_from_pb, failure_to_pb


@pytest.mark.parametrize(
    "error",
    [
        Aborted("the blocks were needed", reason="LEASE_REVOKED"),
        ResourceExhausted("full", reason="QUEUE_FULL", retry_after=0.25),
    ],
)
def test_an_error_arrives_with_its_type_reason_and_delay(error: ServiceError) -> None:
    again = failure_from_pb(failure_to_pb(error))
    assert type(again) is type(error)
    assert (again.message, again.reason) == (error.message, error.reason)
    assert again.retry_after == error.retry_after


def test_what_no_service_of_ours_sends_is_our_own_bug() -> None:
    error = failure_from_pb(decode_pb2.Failure(code=99, message="?"))
    assert isinstance(error, Internal)
    assert error.reason == "UNKNOWN"
