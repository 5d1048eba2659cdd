"""What the engine thread tells the event loop."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from baton.v1 import decode_pb2
from decode_svc.attempt import Attempt, Grant
from worker.load import Load


@dataclass(frozen=True, slots=True)
class DecodeEvents:
    """What the event loop must hear of. ``outputs`` are by session.

    An attempt in ``finished`` has had its last row in ``outputs``, now or before. ``prompted``
    are those whose prompt this worker computed itself, and now has.
    """

    load: Load
    grants: tuple[Grant, ...] = ()
    preempted: tuple[Attempt, ...] = ()
    outputs: Mapping[int, decode_pb2.StepOutputs] = field(default_factory=dict)
    prompted: tuple[Attempt, ...] = ()
    finished: tuple[Attempt, ...] = ()
    failed: tuple[Attempt, ...] = ()
