"""Whether a GPU has room for a model, and how much of it the KV pool takes.

Readings come from outside, so that all of it is tried without a GPU.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from engine.errors import ConfigurationError

# What is left beside the weights and the pool: activations of the largest step, graphs and the
# workspaces of libraries, which come after the pool is sized.
RESERVE_SHARE = 0.1
MIN_RESERVE_BYTES = 3 << 30
# With less than this of its part free, somebody else holds what this process should have.
USUAL_SHARE = 0.9
PATIENCE_SECONDS = 30.0
# Where there is enough to start with, and so long nothing was given back, nobody will: a peer that
# froze, or that a network cut off, is noticed after 5 s.
STILL_SECONDS = 10.0
_LINE_SECONDS = 5.0
_PAUSE_SECONDS = 0.1
GIB = 1 << 30

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """Bytes of a GPU that are free now, and of the whole."""

    free: int
    total: int


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """What one of ``num_processes`` on a GPU will take, in bytes; ``pool`` is what its KV pool is
    asked to have, 0 for what is left, and ``least_pool`` the smallest that is of any use."""

    weights: int
    pool: int
    least_pool: int
    num_processes: int

    @property
    def least(self) -> int:
        """Without so much it cannot start."""
        return self.weights + (self.pool or MIN_RESERVE_BYTES + self.least_pool)

    def part_of(self, total: int) -> int:
        """The most that it may have of a GPU of ``total`` bytes."""
        return total if self.pool else total // self.num_processes

    def usual(self, total: int) -> int:
        """What is free on a GPU where nobody holds what this process should have."""
        return self.least if self.pool else int(self.part_of(total) * USUAL_SHARE)


def await_memory(
    need: MemoryNeed,
    read: Callable[[], GpuMemory],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> GpuMemory:
    """The first reading with what is usual, or the last one where waiting is of no use any more.

    Memory that a peer has mapped outlives its owner (protocol 4.8): a worker that was restarted may
    find its GPU full of its predecessor's pool until that peer lets go of it.
    """
    memory = read()
    if need.least > need.part_of(memory.total):
        return memory
    began = last_return = clock()
    last_line = began - _LINE_SECONDS
    most_free = memory.free
    while memory.free < (usual := max(need.usual(memory.total), need.least)):
        now = clock()
        is_still = memory.free >= need.least and now - last_return >= STILL_SECONDS
        if is_still or now - began >= PATIENCE_SECONDS:
            break
        if now - last_line >= _LINE_SECONDS:
            last_line = now
            log.warning(
                "waiting for memory of the GPU, %.0f of at most %.0f s: %.1f of %.1f GiB are free; "
                "a worker that was here before leaves its memory when its peers let go of it",
                now - began,
                PATIENCE_SECONDS,
                memory.free / GIB,
                usual / GIB,
            )
        sleep(_PAUSE_SECONDS)
        memory = read()
        if memory.free > most_free:
            most_free, last_return = memory.free, clock()
    return memory


def pool_bytes(memory: GpuMemory, own_bytes: int, num_processes: int) -> int:
    """Bytes that are free now but for the reserve; of several processes on the GPU, each takes its
    part of the whole, less the ``own_bytes`` that it has. Raises ConfigurationError where none are
    left."""
    free = memory.free
    if num_processes > 1:
        free = min(free, memory.total // num_processes - own_bytes)
    reserve = max(int(free * RESERVE_SHARE), MIN_RESERVE_BYTES)
    if free <= reserve:
        raise ConfigurationError(
            f"the weights leave {free / GIB:.1f} of the GPU's {memory.total / GIB:.1f} GiB to this "
            f"one of {num_processes} processes, and {reserve / GIB:.1f} are kept for activations: "
            f"choose a smaller model, or more GPUs (tensor_parallel_size)"
        )
    return free - reserve
