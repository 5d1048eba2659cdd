"""How fast blocks move between the devices of this machine, in a process of its own.

Prints a JSON object a line for each pair and transport: ``pair``, then ``transport``, ``rate`` and
``plain``, in bytes a second, or ``error``. ``plain`` is the rate of one contiguous copy between the
same devices.
"""

import json
from collections.abc import Iterator
from itertools import combinations

import torch

from batonctl.doctor.block_reading import connected, pool_blocks_for, seconds_in_turn
from batonctl.doctor.pool_process import new_pool, running_pool, transport_over
from kvtransfer.errors import TransferError
from worker.settings import TransportChoice

BLOCK_BYTES = 2 << 20
NUM_CPU_BLOCKS, NUM_GPU_BLOCKS = 16, 64


def pairs(num_gpus: int) -> Iterator[tuple[str, str, str]]:
    """Name, where the blocks are, who reads them."""
    yield "CPU", "cpu", "cpu"
    if num_gpus == 1:
        yield "GPU 0", "cuda:0", "cuda:0"
    for there, here in combinations(range(num_gpus), 2):
        yield f"GPU {there} to GPU {here}", f"cuda:{there}", f"cuda:{here}"


def measure(there: str, here: str, choice: TransportChoice) -> dict[str, object]:
    """Raises TransferError and RuntimeError."""
    num_blocks = NUM_CPU_BLOCKS if here == "cpu" else NUM_GPU_BLOCKS
    pool_blocks = pool_blocks_for(num_blocks)
    pool = new_pool(here, pool_blocks, BLOCK_BYTES)
    source = new_pool(there, num_blocks, BLOCK_BYTES)
    target = torch.empty_like(source, device=here)

    def copy() -> None:
        target.copy_(source)
        if target.is_cuda:
            torch.cuda.synchronize(source.device)
            torch.cuda.synchronize(target.device)

    with (
        running_pool(choice, there, pool_blocks, BLOCK_BYTES) as metadata,
        connected(transport_over(pool, choice), metadata, num_blocks) as read,
    ):
        seconds, plain = seconds_in_turn(read, copy)
    return {"transport": choice, "rate": source.nbytes / seconds, "plain": source.nbytes / plain}


def main() -> None:
    # One thread copies, as one does in UCX.
    torch.set_num_threads(1)
    for name, there, here in pairs(torch.cuda.device_count()):
        choices: tuple[TransportChoice, ...] = ("cuda_ipc", "nixl") if here != "cpu" else ("nixl",)
        for choice in choices:
            try:
                found = measure(there, here, choice)
            except (TransferError, RuntimeError) as error:
                found = {"error": f"{choice}: {error}"}
            print(json.dumps({"pair": name, **found}), flush=True)


if __name__ == "__main__":
    main()
