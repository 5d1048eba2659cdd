"""Seconds as protobuf has them, and back."""

from google.protobuf.duration_pb2 import Duration


def to_duration(seconds: float) -> Duration:
    """Rounded to nanoseconds."""
    duration = Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration


def to_seconds(duration: Duration) -> float:
    """With a fraction; 0 for a duration that is not set."""
    return duration.ToNanoseconds() / 1e9
