"""How an attempt can end, as the last message about it."""

from baton.v1 import decode_pb2
from chassis.durations import to_duration
from chassis.errors import ServiceError
from chassis.failure import failure_to_pb
from decode_svc.job import DecodeJob


def completed(job: DecodeJob) -> decode_pb2.Finished:
    """Every choice ended."""
    return _finished(job, decode_pb2.OUTCOME_COMPLETED)


def cancelled(job: DecodeJob) -> decode_pb2.Finished:
    """The gateway, its session or the deadline ended it."""
    return _finished(job, decode_pb2.OUTCOME_CANCELLED)


def preempted(job: DecodeJob) -> decode_pb2.Finished:
    """Its blocks went to older attempts; choices whose end was not sent go on elsewhere."""
    finished = _finished(job, decode_pb2.OUTCOME_PREEMPTED)
    finished.preemptions = 1
    finished.unfinished_choices.extend(job.attempt.unfinished_choices)
    return finished


def failed(job: DecodeJob, error: ServiceError) -> decode_pb2.Finished:
    """It cannot go on here."""
    finished = _finished(job, decode_pb2.OUTCOME_FAILED)
    finished.failure.CopyFrom(failure_to_pb(error))
    return finished


def _finished(job: DecodeJob, outcome: "decode_pb2.Outcome.ValueType") -> decode_pb2.Finished:
    finished = decode_pb2.Finished(handle=job.attempt.handle, outcome=outcome)
    if job.transfer_seconds is not None:
        finished.kv_transfer.CopyFrom(to_duration(job.transfer_seconds))
    if job.own_prompt is not None:
        finished.prompt.CopyFrom(job.own_prompt)
    return finished
