"""Rows of steps as StepOutputs messages, one per session."""

from collections.abc import Iterable

from baton.v1 import decode_pb2
from decode_svc.attempt import Row
from worker.results import finish_to_pb, logprobs_to_pb


def pack(rows: Iterable[Row]) -> dict[int, decode_pb2.StepOutputs]:
    """Messages by session, rows in order. Runs on the engine thread: the loop only passes on."""
    packed: dict[int, decode_pb2.StepOutputs] = {}
    for row in rows:
        attempt = row.attempt
        step = packed.get(attempt.session)
        if step is None:
            step = packed[attempt.session] = decode_pb2.StepOutputs()
        sample = row.sample
        if sample.logprobs is not None:
            step.logprobs.add(row=len(step.handles), logprobs=logprobs_to_pb(sample.logprobs))
        if row.status.is_finished:
            finish = finish_to_pb(row.status, sample.token_id)
            step.finishes.add(row=len(step.handles), finish=finish)
        step.handles.append(attempt.handle)
        step.choices.append(row.choice)
        step.indices.append(row.index)
        step.token_ids.append(sample.token_id)
    return packed


def merge(earlier: decode_pb2.StepOutputs, later: decode_pb2.StepOutputs) -> None:
    """Appends the rows of ``later``, which is used up, to ``earlier``."""
    offset = len(earlier.handles)
    for logprobs in later.logprobs:
        logprobs.row += offset
    for finish in later.finishes:
        finish.row += offset
    earlier.MergeFrom(later)
