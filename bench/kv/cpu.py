"""NIXL between two processes of a host, against a plain copy from shared memory."""

from contextlib import closing
from multiprocessing.shared_memory import SharedMemory

import numpy as np

from batonctl.doctor.block_reading import Reading, connected, pool_blocks_for, seconds_in_turn
from batonctl.doctor.pool_process import new_pool, running_pool, transport_over
from bench.results import Figure

# What a prompt of 1000 tokens has in a Llama-3.1-8B-shaped pool, and the size of the pieces.
NUM_BYTES = 128 << 20
BLOCK_KIB = (32, 2048)
RIVAL = "NumPy's copy of each block from shared memory, in the same run"


class SharedCopy:
    """Copies scattered blocks from shared memory into memory of this process."""

    def __init__(self, shared: SharedMemory, like: Reading) -> None:
        assert shared.buf is not None, "it is open"
        shape = (like.pool.shape[0], -1)
        # On one thread: two of them would wait for each other wherever something else runs.
        self._source = np.frombuffer(shared.buf, dtype=np.int64, count=like.pool.numel())
        self._source = self._source.reshape(shape)
        self._source[:] = like.pool.view(shape).numpy()
        self._target = self._source.copy()
        self._like = like

    def __call__(self) -> None:
        for there, here in zip(self._like.scattered(), self._like.scattered(), strict=True):
            self._target[here] = self._source[there]


def measure_cpu(num_bytes: int = NUM_BYTES, block_kib: tuple[int, ...] = BLOCK_KIB) -> list[Figure]:
    """For each size of blocks."""
    return [figure for kib in block_kib for figure in _measure(num_bytes, kib)]


def _measure(num_bytes: int, kib: int) -> list[Figure]:
    num_blocks = num_bytes // (kib << 10)
    pool = new_pool("cpu", pool_blocks_for(num_blocks), kib << 10)
    with (
        running_pool("nixl", "cpu", pool.shape[0], kib << 10) as metadata,
        connected(transport_over(pool, "nixl"), metadata, num_blocks) as read,
    ):
        shared = SharedMemory(create=True, size=read.pool.nbytes)
        try:
            with closing(shared):
                copy = SharedCopy(shared, read)
                ours, plain = (read.num_bytes / each / 1e9 for each in seconds_in_turn(read, copy))
                # The buffer cannot be closed while a tensor looks at it.
                del copy
        finally:
            shared.unlink()
    name = f"kv.cpu.{kib}kib" if kib < 1024 else f"kv.cpu.{kib >> 10}mib"
    note = f"{num_blocks} scattered blocks"
    return [
        Figure(f"{name}.nixl.gbps", round(ours, 3), "GB/s", round(plain, 3), RIVAL, note=note),
        Figure(f"{name}.of_shared_copy", round(ours / plain, 3), "of the copy's rate"),
    ]
