"""What the ranks of a model do together."""

import datetime
import os

import torch
from torch import distributed
from torch._C._distributed_c10d import TCPStore

# A rank that loads or compiles may keep the others waiting for so long.
TIMEOUT = datetime.timedelta(minutes=10)


class Group:
    """The ranks of one model, connected. Every rank makes every call, in the same order."""

    def __init__(
        self, rank: int, size: int, port: int, backend: str, listener: int | None = None
    ) -> None:
        """``port`` is where rank 0 listens on loopback, ``backend`` "gloo" or "nccl"; ``listener``
        is rank 0's descriptor of a socket that listens there, where it has one."""
        self.rank = rank
        self.size = size
        # Left to itself gloo listens where the host's name leads.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        store = TCPStore(
            "127.0.0.1",
            port,
            size,
            is_master=rank == 0,
            timeout=TIMEOUT,
            wait_for_workers=False,
            master_listen_fd=listener,
        )
        distributed.init_process_group(
            backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT
        )

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks; may be ``x`` itself."""
        distributed.all_reduce(x)
        return x

    def gather_columns(self, x: torch.Tensor) -> torch.Tensor:
        """(R, N) of every rank, side by side: (R, size * N)."""
        gathered = x.new_empty((self.size, *x.shape))
        distributed.all_gather(list(gathered), x.contiguous())
        return gathered.transpose(0, 1).reshape(x.shape[0], -1)

    def smallest(self, number: int, device: torch.device) -> int:
        """The smallest of every rank's ``number``."""
        numbers = torch.tensor([number], device=device)
        distributed.all_reduce(numbers, distributed.ReduceOp.MIN)
        return int(numbers.item())

    def broadcast(self, x: torch.Tensor) -> None:
        """Overwrites ``x`` with that of rank 0."""
        distributed.broadcast(x, src=0)

    def close(self, *, broken: bool) -> None:
        """Lets go of the other ranks; ``broken`` where one of them is gone."""
        distributed.destroy_process_group()
