"""Who a worker is, for its whole life."""

import os
from dataclasses import dataclass

from baton.v1 import worker_pb2
from worker.loaded import LoadedModel

BOOT_ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class Identity:
    """Drawn at start; a restarted process is somebody else (protocol 1.1)."""

    boot_id: bytes

    @classmethod
    def draw(cls) -> "Identity":
        return cls(os.urandom(BOOT_ID_BYTES))

    def to_pb(
        self, role: "worker_pb2.WorkerRole.ValueType", address: str, model: LoadedModel
    ) -> worker_pb2.WorkerInfo:
        """``address`` is host and port."""
        return worker_pb2.WorkerInfo(
            boot_id=self.boot_id,
            role=role,
            name=address,
            model=model.name,
            layout_digest=model.layout.digest,
            layout=model.layout.to_pb(),
            max_context_tokens=model.max_context_tokens,
            block_size=model.limits.block_size,
            checkpoint_digest=model.checkpoint_digest,
            vocabulary_digest=model.vocabulary_digest,
        )
