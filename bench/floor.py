"""How fast this machine could be: what it reads and multiplies, measured with torch itself."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

READ_BYTES = 256 << 20
GEMM_SIZE = 2048
REPEATS = 5


@dataclass(frozen=True, slots=True)
class Floor:
    """``bytes_per_second`` read from memory, ``flops`` of a large matrix product."""

    bytes_per_second: float
    flops: float

    @classmethod
    def of_cpu(cls, dtype: torch.dtype) -> "Floor":
        """Of products in ``dtype``, with the threads torch is set to; the best of several tries."""
        memory = torch.ones(READ_BYTES // 8, dtype=torch.int64)
        a, b = torch.ones(2, GEMM_SIZE, GEMM_SIZE, dtype=dtype)
        return cls(
            bytes_per_second=READ_BYTES / _best(lambda: memory.sum()),
            flops=2 * GEMM_SIZE**3 / _best(lambda: a @ b),
        )

    def seconds(self, *, num_bytes: float, num_flops: float) -> float:
        """No step can be faster: it must read its bytes and do its arithmetic."""
        return max(num_bytes / self.bytes_per_second, num_flops / self.flops)


def _best(function: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        function()
        times.append(time.perf_counter() - started)
    return min(times)
