"""Which failures another attempt may mend."""

import pytest

from chassis.errors import (
    Aborted,
    FailedPrecondition,
    Internal,
    ResourceExhausted,
    ServiceError,
    Unavailable,
)
from gateway.failures import is_retryable


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Aborted("", reason="LEASE_REVOKED"), True),
        (ResourceExhausted("", reason="QUEUE_FULL"), True),
        (FailedPrecondition("", reason="BOOT_ID_STALE"), True),
        (FailedPrecondition("", reason="LAYOUT_MISMATCH"), False),
        (Unavailable("", reason="WORKER_DRAINING"), True),
        (Unavailable("", reason="PREFILL_WORKER_LOST"), True),
        (Internal("", reason="STEP_FAILED"), True),
        (Internal("", reason="INTERNAL"), False),
    ],
    ids=lambda value: value.reason if isinstance(value, ServiceError) else "",
)
def test_only_what_is_no_verdict_on_the_request_is_tried_again(
    error: ServiceError, expected: bool
) -> None:
    assert is_retryable(error) is expected
