"""What a worker offers to its peers, by the setting ``transport``."""

import pytest
import torch

from kvtransfer.errors import TransportUnavailable
from worker.settings import TransportChoice
from worker.transports import open_transport

POOL = torch.zeros(8, 1, 1024)


@pytest.mark.parametrize("choice", ["auto", "nixl"])
def test_a_pool_on_the_host_is_offered_over_nixl(choice: TransportChoice) -> None:
    transport = open_transport(POOL, f"offered-{choice}", choice)
    assert transport.name == "nixl"
    transport.close()


def test_a_pool_on_the_host_cannot_be_mapped() -> None:
    with pytest.raises(TransportUnavailable, match="cuda_ipc moves blocks between GPUs"):
        open_transport(POOL, "unmapped", "cuda_ipc")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_pool_on_a_gpu_is_offered_by_both_and_mapped_where_that_works() -> None:
    transport = open_transport(POOL.cuda(), "both", "auto")
    assert transport.name == "cuda_ipc,nixl"
    transport.close()
