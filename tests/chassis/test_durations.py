"""Seconds to protobuf and back."""

import pytest
from google.protobuf.duration_pb2 import Duration

from chassis.durations import to_duration, to_seconds


@pytest.mark.parametrize("seconds", [0.0, 1e-9, 0.1, 1.5, 86_400.25, -2.5])
def test_seconds_come_back_as_they_were(seconds: float) -> None:
    assert to_seconds(to_duration(seconds)) == pytest.approx(seconds, rel=0, abs=1e-9)


def test_what_is_finer_than_a_nanosecond_is_rounded() -> None:
    assert to_duration(1.9999999999) == Duration(seconds=2)
