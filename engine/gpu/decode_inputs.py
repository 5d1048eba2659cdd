"""The buffers that captured decode steps read, filled by one copy from the host a step."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from engine.batch import ForwardBatch
from engine.gpu.request_rows import RequestRows
from engine.gpu.staging import Staging
from engine.kernels.cuda.prepare_decode import prepare_decode
from engine.kernels.cuda.sample import SamplingRows
from engine.request import Request

_ARRAYS = (
    "known_tokens", "sources", "seq_lens", "temperatures", "top_ps", "min_ps", "top_ks",
    "seed_lows", "seed_highs", "choices",
)  # fmt: skip
# The stride of the tables, alone at the front; what follows stays aligned for wide loads.
_HEADER = 16


class DecodeInputs:
    """One packed int32 buffer on the device, and its Staging on the host.

    ``drawn``: (max sequences,) int32, the tokens that the last step drew, in its order.
    """

    def __init__(
        self, *, max_sequences: int, max_blocks: int, block_size: int, device: torch.device
    ) -> None:
        self._rows = RequestRows(2 * max_sequences, max_blocks)
        self._max_sequences = max_sequences
        self._block_size = block_size
        self._tables_start = _HEADER + len(_ARRAYS) * max_sequences
        size = self._tables_start + max_sequences * max_blocks
        self._packed = torch.zeros(size, dtype=torch.int32, device=device)
        self._staging = None if device.type == "meta" else Staging(self._packed)
        self._prepared = torch.zeros(4, max_sequences, dtype=torch.int32, device=device)
        self.drawn = torch.zeros(max_sequences, dtype=torch.int32, device=device)

    def fill(
        self, requests: Sequence[Request], sources: Sequence[int], bucket: int
    ) -> NDArray[np.int32]:
        """Sends a step of ``requests`` to the device, padded to ``bucket`` with tokens in the sink.

        Request i's token is ``drawn[sources[i]]``, or the one it knows where that is -1. Returns
        what was sent, valid until the next call but one.
        """
        assert self._staging is not None
        host = self._staging.next()
        arrays = host[_HEADER : self._tables_start].reshape(len(_ARRAYS), self._max_sequences)
        count = len(requests)
        rows = self._rows.update(requests)
        lens = np.array([request.num_computed_tokens + 1 for request in requests], dtype=np.int32)
        arrays[0, :count] = [
            request.token_ids[request.num_computed_tokens] if source < 0 else 0
            for request, source in zip(requests, sources, strict=True)
        ]
        arrays[1, :count] = sources
        arrays[2, :count] = lens
        arrays[3:, :count] = self._rows.sampling[:, rows]
        arrays[:, count:bucket] = 0
        arrays[1, count:bucket] = -1
        arrays[2, count:bucket] = 1
        width = -(-int(lens.max(initial=1)) // self._block_size)
        host[0] = width
        end = self._tables_start + bucket * width
        tables = host[self._tables_start : end].reshape(bucket, width)
        # Not np.take: that copies the columns of every row first, as they do not lie together.
        tables[:count] = self._rows.tables[rows, :width]
        tables[count:] = 0
        self._staging.send(end)
        return host[:end]

    def load(self, words: NDArray[np.int32]) -> None:
        """Sends a step that another rank has filled."""
        assert self._staging is not None
        self._staging.next()[: len(words)] = words
        self._staging.send(len(words))

    @property
    def token_ids(self) -> torch.Tensor:
        """(max sequences,) int32: the tokens that the last step computed, in its order."""
        return self._prepared[0]

    @property
    def tables(self) -> torch.Tensor:
        return self._packed[self._tables_start :]

    @property
    def table_stride(self) -> torch.Tensor:
        return self._packed[:1]

    def batch(self, bucket: int) -> ForwardBatch:
        """The step as the model sees it, after ``prepare``: views that every step shares."""
        token_ids, positions, slot_blocks, slot_offsets = self._prepared[:, :bucket]
        return ForwardBatch(
            token_ids=token_ids,
            positions=positions,
            slot_blocks=slot_blocks,
            slot_offsets=slot_offsets,
            query_starts=torch.arange(bucket + 1, device=token_ids.device),
            seq_lens=self._array("seq_lens", bucket),
            block_tables=self.tables[:bucket].unsqueeze(1),
            logit_indices=torch.arange(bucket, device=token_ids.device),
            query_lens=(1,) * bucket,
            context_lens=(0,) * bucket,
        )

    def prepare(self, batch: ForwardBatch, bucket: int) -> None:
        """The first launch of a step."""
        prepare_decode(
            self._array("known_tokens", bucket),
            self._array("sources", bucket),
            self.drawn,
            batch.seq_lens,
            self.tables,
            self.table_stride,
            batch.token_ids,
            batch.positions,
            batch.slot_blocks,
            batch.slot_offsets,
            self._block_size,
        )

    def sampling_rows(self, bucket: int) -> SamplingRows:
        """The token to draw stands right after the sequence."""

        def floats(name: str) -> torch.Tensor:
            return self._array(name, bucket).view(torch.float32)

        return SamplingRows(
            temperatures=floats("temperatures"),
            top_ps=floats("top_ps"),
            min_ps=floats("min_ps"),
            top_ks=self._array("top_ks", bucket),
            choices=self._array("choices", bucket),
            positions=self._array("seq_lens", bucket),
            seed_lows=self._array("seed_lows", bucket),
            seed_highs=self._array("seed_highs", bucket),
        )

    def _array(self, name: str, bucket: int) -> torch.Tensor:
        start = _HEADER + _ARRAYS.index(name) * self._max_sequences
        return self._packed[start : start + bucket]
