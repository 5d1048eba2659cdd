"""What the engine runs in one case, for people who ask."""

from dataclasses import dataclass
from typing import Literal

Operation = Literal["attention", "gemm", "all-reduce"]
Phase = Literal["prefill", "decode", "any"]


@dataclass(frozen=True, slots=True)
class Choice:
    """One row of a selection table in words. ``architecture`` is what the row is for, "*" any;
    ``subject`` the head size or the weight; ``note`` why, or what was measured."""

    operation: Operation
    phase: Phase
    architecture: str
    subject: str
    dtype: str
    batch: str
    backend: str
    note: str
