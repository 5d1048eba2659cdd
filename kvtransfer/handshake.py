"""What two workers tell each other before the first block moves (protocol 2.4)."""

from collections.abc import Sequence

from baton.v1 import kv_transfer_pb2
from kvtransfer.errors import LayoutMismatch, MessageOutOfOrder, StaleBootId
from kvtransfer.layout import HeadRange, KvLayout, check_same_layout
from kvtransfer.transfer_thread import TransferThread
from kvtransfer.transport.ranked import RemoteRank


def check_block_bytes(layout: KvLayout, transfers: TransferThread) -> None:
    """Our own invariant: the pool that is transferred has the blocks that the layout describes."""
    assert layout.block_bytes(layout.num_kv_heads) == transfers.block_bytes, (
        f"a pool with blocks of {transfers.block_bytes} bytes is not one of {layout}"
    )


def peer_name(boot_id: bytes) -> str:
    """What a worker is called among transports: unique in time as well (protocol 4.8)."""
    return boot_id.hex()


def agent_name(boot_id: bytes, rank: int) -> str:
    """What a rank is called there."""
    return f"{peer_name(boot_id)}-{rank}"


def own_ranks(layout: KvLayout, transfers: TransferThread) -> list[kv_transfer_pb2.KvRank]:
    """This worker's ranks, in order."""
    pairs = zip(layout.divide(len(transfers.metadata)), transfers.metadata, strict=True)
    return [
        kv_transfer_pb2.KvRank(
            rank=rank,
            first_head=heads.first_head,
            num_heads=heads.num_heads,
            num_blocks=transfers.num_blocks,
            transport=transfers.transport_name,
            transport_metadata=metadata,
        )
        for rank, (heads, metadata) in enumerate(pairs)
    ]


def request_handshake(
    layout: KvLayout, transfers: TransferThread, *, boot_id: bytes, peer_boot_id: bytes
) -> kv_transfer_pb2.HandshakeRequest:
    """The decode worker's side."""
    return kv_transfer_pb2.HandshakeRequest(
        boot_id=boot_id,
        peer_boot_id=peer_boot_id,
        layout_digest=layout.digest,
        layout=layout.to_pb(),
        ranks=own_ranks(layout, transfers),
    )


def answer_handshake(
    request: kv_transfer_pb2.HandshakeRequest,
    layout: KvLayout,
    transfers: TransferThread,
    *,
    boot_id: bytes,
) -> kv_transfer_pb2.HandshakeResponse:
    """The prefill worker's side. Raises StaleBootId, LayoutMismatch and MessageOutOfOrder."""
    if request.peer_boot_id != boot_id:
        raise StaleBootId(
            f"this is worker {boot_id.hex()}, the handshake was for {request.peer_boot_id.hex()}"
        )
    check_same_layout(decode=KvLayout.from_pb(request.layout), prefill=layout)
    if request.layout_digest != layout.digest:
        raise MessageOutOfOrder("the layout digest is not that of the layout sent with it")
    _check_ranks(request.ranks, layout)
    for rank in request.ranks:
        _check_transport(rank.transport, transfers.transport_name)
    return kv_transfer_pb2.HandshakeResponse(boot_id=boot_id, ranks=own_ranks(layout, transfers))


def check_answer(
    response: kv_transfer_pb2.HandshakeResponse,
    layout: KvLayout,
    transfers: TransferThread,
    *,
    peer_boot_id: bytes,
) -> list[kv_transfer_pb2.KvRank]:
    """The ranks to read from. Raises StaleBootId, LayoutMismatch and MessageOutOfOrder."""
    if response.boot_id != peer_boot_id:
        raise StaleBootId(f"worker {peer_boot_id.hex()} is now {response.boot_id.hex()}")
    ranks = list(response.ranks)
    _check_ranks(ranks, layout)
    for rank in ranks:
        _check_transport(transfers.transport_name, rank.transport)
    return ranks


def remote_ranks(layout: KvLayout, ranks: Sequence[kv_transfer_pb2.KvRank]) -> list[RemoteRank]:
    """What the transports need of a peer's ``ranks``."""
    return [
        RemoteRank(rank.transport_metadata, layout.block_bytes(rank.num_heads)) for rank in ranks
    ]


def _check_ranks(ranks: Sequence[kv_transfer_pb2.KvRank], layout: KvLayout) -> None:
    heads = [HeadRange(rank.first_head, rank.num_heads) for rank in ranks]
    if not layout.is_divided_by(heads):
        shown = ", ".join(map(str, heads))
        raise MessageOutOfOrder(
            f"ranks with KV heads {shown} do not divide {layout.num_kv_heads} in order"
        )


def _check_transport(decode: str, prefill: str) -> None:
    """Of two lists of transports, one at least must be in both; which one works turns out later."""
    if set(decode.split(",")).isdisjoint(prefill.split(",")):
        raise LayoutMismatch("transport", decode, prefill)
