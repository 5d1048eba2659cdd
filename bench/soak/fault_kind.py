"""What can happen to a process."""

from enum import StrEnum


class FaultKind(StrEnum):
    """As the report says it."""

    KILL = "killed, started again"
    MOVE = "killed, started elsewhere"
    FREEZE = "stopped, continued"
    DRAIN = "drained, started again"


KILLS = (FaultKind.KILL, FaultKind.MOVE)
