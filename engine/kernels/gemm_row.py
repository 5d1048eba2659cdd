"""One row of the table that says which GEMM runs where on a CPU."""

from dataclasses import dataclass
from typing import Literal

WeightKind = Literal["dense", "q4", "q8"]
GemmBackend = Literal["onednn_packed", "torch", "int4", "dequantize"]


@dataclass(frozen=True, slots=True)
class GemmRow:
    """Applies to up to ``max_tokens`` tokens. ``architecture`` is what torch calls the CPU's
    capability, or "*" for any; ``note`` says where the row comes from."""

    weights: WeightKind
    architecture: str
    max_tokens: int | None
    backend: GemmBackend
    note: str = ""
