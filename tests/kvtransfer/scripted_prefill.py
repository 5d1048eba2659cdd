"""A prefill worker that says exactly what a test tells it to, on the real wire."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from baton.v1 import kv_transfer_pb2 as pb
from baton.v1 import kv_transfer_pb2_grpc
from kvtransfer.handshake import answer_handshake
from kvtransfer.transfer_thread import TransferThread
from tests.kvtransfer.stage import LAYOUT


@dataclass(frozen=True, slots=True)
class Hear:
    """The script waits for this message of decode: "start" or "done"."""

    message: str


@dataclass(frozen=True, slots=True)
class Stay:
    """The script says nothing more, and keeps the call open."""


Step = pb.PullResponse | Hear | Stay


class ScriptedPrefill(kv_transfer_pb2_grpc.KvTransferServiceServicer):
    """Shakes hands like any other, then follows its script on every Pull."""

    def __init__(self, boot_id: bytes, transfers: TransferThread, script: Sequence[Step]) -> None:
        self.boot_id = boot_id
        self.transfers = transfers
        self._script = tuple(script)

    async def Handshake(self, request: pb.HandshakeRequest, context: Any) -> pb.HandshakeResponse:
        self.transfers.linger(0.2)
        return answer_handshake(request, LAYOUT, self.transfers, boot_id=self.boot_id)

    async def Pull(  # type: ignore[override]  # reads and writes by the context
        self, request_iterator: Any, context: Any
    ) -> None:
        assert (await context.read()).WhichOneof("message") == "open"
        for step in self._script:
            match step:
                case Hear(message):
                    assert (await context.read()).WhichOneof("message") == message
                case Stay():
                    await asyncio.Event().wait()
                case _:
                    await context.write(step)


COMPUTING = pb.PullResponse(computing=pb.Computing())
START = Hear("start")
DONE = Hear("done")
STAY = Stay()


def chunk(first_token: int, num_tokens: int, *block_ids: int) -> pb.PullResponse:
    return pb.PullResponse(
        chunk_ready=pb.ChunkReady(
            first_token=first_token, num_tokens=num_tokens, block_ids=block_ids
        )
    )


def complete(num_tokens: int, last: pb.PullResponse | None = None) -> pb.PullResponse:
    return pb.PullResponse(
        complete=pb.Complete(
            num_tokens=num_tokens,
            first_samples=[pb.FirstSample(choice=0, token_id=7)],
            last_chunk=last.chunk_ready if last is not None else None,
        )
    )


def released(*, alive: bool) -> pb.PullResponse:
    return pb.PullResponse(released=pb.Released(alive=alive))
