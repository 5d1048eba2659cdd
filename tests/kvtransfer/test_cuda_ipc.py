"""What only mapped memory does: beyond what every transport must."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from kvtransfer.errors import PeerLost, PeerUnreachable
from kvtransfer.transfer_thread import TransferThread
from kvtransfer.transport.base import BlockPart, Ended
from kvtransfer.transport.cuda_ipc import CudaIpcTransport
from tests.kvtransfer.mapped_peers import HostMemory, memory_of
from tests.kvtransfer.peers import NUM_BLOCKS, WAIT, ProcessPeer, numbered
from tests.kvtransfer.transport_kinds import GPUS

WHOLE = BlockPart(64, 0, 0, 64)


needs_gpu = pytest.mark.skipif(not GPUS, reason="needs an NVIDIA GPU")


def of_host(num_blocks: int) -> tuple[CudaIpcTransport, HostMemory]:
    memory = HostMemory()
    return CudaIpcTransport(torch.zeros(num_blocks, 1, 16), memory), memory


def test_a_pool_is_mapped_from_its_connection_to_its_end() -> None:
    (reader, memory), (peer, _) = of_host(8), of_host(8)
    for name in ("a", "b"):
        reader.connect(name, peer.metadata(), WHOLE)
    reader.poll()
    assert memory.num_mapped == 4
    reader.disconnect("a")
    assert memory.num_mapped == 2
    reader.close()
    assert memory.num_mapped == 0


def test_a_peer_whose_probe_holds_something_else_is_refused() -> None:
    (reader, memory), (peer, _) = of_host(8), of_host(8)
    metadata = bytearray(peer.metadata())
    metadata[16] ^= 1
    ticket = reader.connect("peer", bytes(metadata), WHOLE)
    (end,) = reader.poll()
    assert end.ticket == ticket and isinstance(end.error, PeerUnreachable)
    reader.disconnect("peer")
    assert memory.num_mapped == 0


def test_a_peer_that_is_given_up_is_read_no_more_once_it_is_unmapped() -> None:
    (reader, memory), (peer, _) = of_host(8), of_host(8)
    memory.held = True
    reader.connect("given up", peer.metadata(), WHOLE)
    kept = reader.connect("kept", peer.metadata(), WHOLE)
    reader.disconnect("given up")
    assert memory.num_mapped == 2
    assert reader.poll() == [Ended(kept)]


def test_blocks_that_a_peer_does_not_have_are_not_read() -> None:
    (reader, _), (peer, _) = of_host(8), of_host(4)
    reader.connect("peer", peer.metadata(), WHOLE)
    reader.poll()
    reader.pool.fill_(1.0)
    ticket = reader.post("peer", np.array([(0, 1, 1), (3, 4, 2)]))
    (end,) = reader.poll()
    assert end.ticket == ticket and end.final
    assert isinstance(end.error, PeerLost)
    assert bool((reader.pool == 1.0).all())


def test_any_number_of_peers_is_connected_at_once() -> None:
    (reader, memory), (first, _), (other, _) = of_host(8), of_host(8), of_host(8)
    memory.held = True
    peers = [first, *[other] * 99]
    tickets = [
        reader.connect(str(index), peer.metadata(), WHOLE) for index, peer in enumerate(peers)
    ]
    memory.held = False
    assert reader.poll() == [Ended(ticket) for ticket in tickets]


def test_a_peer_whose_blocks_have_another_size_is_refused_unmapped() -> None:
    (reader, memory), (peer, _) = of_host(8), of_host(8)
    with pytest.raises(PeerUnreachable, match="blocks of 64 bytes, not 128"):
        reader.connect("peer", peer.metadata(), BlockPart(128, 0, 0, 64))
    assert memory.num_mapped == 0


@pytest.fixture
def reader() -> TransferThread:
    pool = torch.zeros(NUM_BLOCKS, 4, 1024, device=f"cuda:{GPUS - 1}")
    thread = TransferThread([CudaIpcTransport(pool, memory_of(pool))])
    thread.start()
    return thread


@pytest.mark.gpu
@needs_gpu
def test_memory_of_a_dead_process_reads_on_and_is_given_back_when_it_is_disconnected(
    reader: TransferThread,
) -> None:
    """So nothing but the connection tells of a peer's death (protocol 4.8)."""
    peer = ProcessPeer(1000, transport="cuda-ipc")
    reader.connect(peer.name, peer.ranks).result(WAIT)
    peer.kill()
    reader.read(peer.name, [7], [9]).done.result(WAIT)
    assert torch.equal(reader.pool[[9]].view(1, -1).cpu(), numbered(1000, [7]))
    reader.disconnect(peer.name).result(WAIT)
    reader.stop()


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("engine_bytes", [0, 1 << 30], ids=["engines", "programs"])
@pytest.mark.parametrize("values", [16, 6], ids=["aligned", "odd sizes"])
def test_both_ways_to_copy_move_parts_of_blocks(engine_bytes: int, values: int) -> None:
    from kvtransfer.transport.cuda_memory import CudaMemory

    def memory(device: str) -> CudaMemory:
        return CudaMemory(torch.device(device), engine_bytes)

    here, there = f"cuda:{GPUS - 1}", "cuda:0"
    theirs = torch.arange(40.0 * values).view(40, 2, values // 2).to(there)
    ours = torch.zeros(40, 1, values // 2, device=here)
    peer = CudaIpcTransport(theirs, memory(there))
    reader = CudaIpcTransport(ours, memory(here))
    half = values * 2
    reader.connect("peer", peer.metadata(), BlockPart(2 * half, half, 0, half))
    reader.post("peer", np.array([(3, 30, 2), (20, 1, 1)]))
    ended: list[Ended] = []
    while len(ended) < 2:
        ended += reader.poll()
    assert [end.error for end in ended] == [None, None]
    assert torch.equal(ours[[30, 31, 1]].cpu(), theirs[[3, 4, 20], 1:].cpu())
    assert int(ours.count_nonzero()) == 3 * values // 2
    reader.close()
    peer.close()


@pytest.mark.gpu
@needs_gpu
def test_memory_that_cannot_be_shared_is_refused_with_the_reason() -> None:
    """In a process of its own, whose allocator makes segments that grow."""
    code = (
        "import torch\n"
        "from kvtransfer.transport.cuda_ipc import CudaIpcTransport\n"
        "from tests.kvtransfer.mapped_peers import memory_of\n"
        "pool = torch.zeros(64, 1, 1 << 16, device='cuda')\n"
        "CudaIpcTransport(pool, memory_of(pool))\n"
    )
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert "TransportUnavailable: CUDA IPC cannot offer this memory" in done.stderr
