"""This engine under the stopwatch: the model runner that every worker drives."""

import time
from collections.abc import Sequence
from pathlib import Path

import torch

from engine.attention.base import AttentionBackend
from engine.attention.select import create_attention
from engine.batch import ForwardBatch, ScheduledRequest, SchedulerOutput
from engine.config import EngineConfig, ModelConfig
from engine.kv_cache import KvCache
from engine.model_runner import DTYPES, ModelRunner
from engine.request import Request
from engine.sampling_params import SamplingParams
from engine.weights.checkpoint import open_checkpoint
from worker.settings import Dtype

BLOCK_SIZE = 16
GREEDY = SamplingParams(temperature=0.0, max_tokens=1 << 20)


class TimedAttention(AttentionBackend):
    """The selected backend; adds up what planning and running take."""

    def __init__(self, kv_cache: KvCache) -> None:
        self._backend = create_attention(kv_cache)
        self.seconds = 0.0

    def plan(self, batch: ForwardBatch) -> None:
        started = time.perf_counter()
        self._backend.plan(batch)
        self.seconds += time.perf_counter() - started

    def run(self, layer: int, query: torch.Tensor, window: int | None = None) -> torch.Tensor:
        started = time.perf_counter()
        output = self._backend.run(layer, query, window)
        self.seconds += time.perf_counter() - started
        return output


class OwnEngine:
    """Holds a model and blocks for ``num_seqs`` sequences of ``max_len`` tokens each.

    Blocks are dealt in turns: no two neighbours within a sequence are neighbours in memory.
    """

    def __init__(
        self,
        path: Path,
        *,
        dtype: Dtype,
        quantized: bool,
        num_threads: int,
        num_seqs: int,
        max_len: int,
    ) -> None:
        checkpoint = open_checkpoint(str(path))
        num_blocks = max_len // BLOCK_SIZE
        self._attentions: list[TimedAttention] = []
        self.runner = ModelRunner(
            EngineConfig(
                model_path=str(path),
                dtype=dtype,
                quantization="q4" if quantized else "none",
                block_size=BLOCK_SIZE,
                kv_memory_bytes=(1 + num_seqs * num_blocks) * block_bytes(checkpoint.config, dtype),
                num_threads=num_threads,
            ),
            checkpoint,
            make_attention=self._make_attention,
        )
        self.runner.warm_up()
        self._block_tables = [
            [1 + seq + num_seqs * index for index in range(num_blocks)] for seq in range(num_seqs)
        ]

    @property
    def attention_seconds(self) -> float:
        """Planned and run since the start."""
        return sum(attention.seconds for attention in self._attentions)

    def prefill(self, prompt: Sequence[int], chunk: int, seq: int = 0) -> float:
        """Seconds from the prompt to its first token, in steps of ``chunk`` tokens."""
        request = self._request(seq, prompt)
        started = time.perf_counter()
        while request.num_uncomputed_tokens > 0:
            num_new_tokens = min(chunk, request.num_uncomputed_tokens)
            self.runner.run(SchedulerOutput((ScheduledRequest(request, num_new_tokens),)))
            request.num_computed_tokens += num_new_tokens
        return time.perf_counter() - started

    def decode(self, num_seqs: int, context_len: int, num_steps: int) -> float:
        """Seconds of ``num_steps`` greedy steps of sequences that hold ``context_len`` tokens."""
        requests = [self._request(seq, [100 + seq] * (context_len + 1)) for seq in range(num_seqs)]
        for request in requests:
            request.num_computed_tokens = context_len
        started = time.perf_counter()
        for _ in range(num_steps):
            parts = tuple(ScheduledRequest(request, 1) for request in requests)
            output = self.runner.run(SchedulerOutput(parts))
            for request, (sample,) in zip(requests, output.samples, strict=True):
                request.num_computed_tokens += 1
                request.append(sample.token_id)
        return time.perf_counter() - started

    def _make_attention(self, kv_cache: KvCache) -> AttentionBackend:
        self._attentions.append(TimedAttention(kv_cache))
        return self._attentions[-1]

    def _request(self, seq: int, token_ids: Sequence[int]) -> Request:
        return Request(
            request_id=str(seq),
            token_ids=list(token_ids),
            num_prompt_tokens=len(token_ids),
            params=GREEDY,
            block_table=self._block_tables[seq],
        )


def block_bytes(model: ModelConfig, dtype: Dtype) -> int:
    """Of the KV of one block."""
    size = DTYPES[dtype].itemsize
    return 2 * model.num_layers * model.num_kv_heads * model.head_dim * BLOCK_SIZE * size
