"""Runs one sequence through a DecoderModel over a real KV pool, chunk by chunk."""

from collections.abc import Callable

import torch

from engine.attention.base import AttentionBackend
from engine.attention.select import create_attention
from engine.batch import ForwardBatch
from engine.kv_cache import KvCache
from engine.models import DecoderModel

BLOCK_SIZE = 16
CPU = torch.device("cpu")


class SequenceRunner:
    """Owns a pool for a single sequence; blocks are handed out backwards, from the top."""

    def __init__(
        self,
        model: DecoderModel,
        dtype: torch.dtype = torch.float32,
        num_blocks: int = 16,
        device: torch.device = CPU,
        make_attention: Callable[[KvCache], AttentionBackend] = create_attention,
    ) -> None:
        self._model = model
        self._device = device
        self._kv_cache = KvCache(
            model.config, num_blocks=num_blocks, block_size=BLOCK_SIZE, dtype=dtype, device=device
        )
        self._attention = make_attention(self._kv_cache)
        self._table = torch.arange(num_blocks, 0, -1)
        self.num_computed = 0

    @torch.inference_mode()
    def logits(self, token_ids: list[int]) -> torch.Tensor:
        """Logits of every one of the next tokens of the sequence, (len, vocabulary)."""
        batch = self._batch(token_ids).to(self._device)
        self._attention.plan(batch)
        hidden = self._model.forward(batch, self._kv_cache, self._attention)
        self.num_computed += len(token_ids)
        return self._model.compute_logits(hidden)

    def greedy(self, prompt: list[int], num_tokens: int) -> list[int]:
        output: list[int] = []
        chunk = prompt
        for _ in range(num_tokens):
            output.append(int(self.logits(chunk)[-1].argmax()))
            chunk = output[-1:]
        return output

    def _batch(self, token_ids: list[int]) -> ForwardBatch:
        length, context = len(token_ids), self.num_computed
        positions = torch.arange(context, context + length)
        num_blocks = -(-(context + length) // BLOCK_SIZE)
        return ForwardBatch(
            token_ids=torch.tensor(token_ids),
            positions=positions,
            slot_blocks=self._table[positions // BLOCK_SIZE],
            slot_offsets=positions % BLOCK_SIZE,
            query_starts=torch.tensor([0, length]),
            seq_lens=torch.tensor([context + length]),
            block_tables=self._table[:num_blocks].unsqueeze(0),
            logit_indices=torch.arange(length),
            query_lens=(length,),
            context_lens=(context,),
        )
