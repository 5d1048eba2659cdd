"""Decode steps captured as CUDA graphs, one for each bucket of batch sizes, sampling included."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from engine.attention.triton_backend import TritonAttention
from engine.batch import ForwardBatch
from engine.gpu.cascade_inputs import CascadeInputs
from engine.gpu.decode_inputs import DecodeInputs
from engine.kernels.cuda.sample import sample
from engine.kv_cache import KvCache
from engine.models import DecoderModel
from engine.request import Request

_BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)
# Where cublasLt's choice of kernels is the better one: 5.56 ms instead of 5.66 at 32 x 1024 tokens
# (Llama 3.1 8B, H200), but 4.85 instead of 4.78 at 8 and 16.3 instead of 15.6 at 256.
_CUBLASLT_BUCKETS = range(17, 65)


@dataclass(frozen=True, slots=True)
class _Captured:
    """A graph, and the logits (bucket, vocabulary) that it leaves."""

    graph: torch.cuda.CUDAGraph
    logits: torch.Tensor


@dataclass(frozen=True, slots=True)
class ToldStep:
    """A step as other ranks hear of it: its bucket, the words of DecodeInputs, and those of
    CascadeInputs, None where nothing is shared."""

    bucket: int
    words: NDArray[np.int32]
    shared: NDArray[np.int32] | None

    def arrays(self) -> list[NDArray[Any]]:
        """As ``from_arrays`` takes it."""
        head = np.array([self.bucket, self.shared is not None], dtype=np.int32)
        return [head, self.words, *(() if self.shared is None else (self.shared,))]

    @classmethod
    def from_arrays(cls, arrays: Sequence[NDArray[Any]]) -> "ToldStep":
        (bucket, shares), words = arrays[:2]
        return cls(int(bucket), words, arrays[2] if shares else None)


class DecodeGraphs:
    """Replays a step of up to ``max_sequences`` sequences that bring one token each."""

    def __init__(
        self,
        model: DecoderModel,
        kv_cache: KvCache,
        attention: TritonAttention,
        *,
        max_sequences: int,
        max_model_len: int,
        pays: Callable[[int, int], bool] | None = None,
        tell: Callable[[ToldStep], None] | None = None,
    ) -> None:
        """``pays(members, tokens)``: whether sequences that share their first tokens should attend
        to them together; None: none ever, and no such steps are captured. ``tell`` hears of each
        step before it is replayed."""
        self._tell = tell
        self._model = model
        self._kv_cache = kv_cache
        self._attention = attention
        self._captured: dict[tuple[int, bool], _Captured] = {}
        self._buckets = [
            *(bucket for bucket in _BUCKETS if bucket < max_sequences),
            max_sequences,
        ]
        self._inputs = DecodeInputs(
            max_sequences=max_sequences,
            max_blocks=-(-max_model_len // kv_cache.block_size),
            block_size=kv_cache.block_size,
            device=kv_cache.tensor.device,
        )
        self._shared: CascadeInputs | None = None
        if pays is not None and max_sequences > 1:
            self._shared = CascadeInputs(kv_cache, model.config.num_heads, max_sequences, pays)

    @property
    def max_sequences(self) -> int:
        return self._buckets[-1]

    @property
    def drawn(self) -> torch.Tensor:
        """(max sequences,) int32: the tokens that the last step drew, in its order."""
        return self._inputs.drawn

    @property
    def token_ids(self) -> torch.Tensor:
        """(max sequences,) int32: the tokens that the last step computed, in its order."""
        return self._inputs.token_ids

    def capture(self) -> None:
        """Compiles and captures every step, over the sink block; the largest first, so that the
        others find its memory."""
        pool = None
        default_library = torch.backends.cuda.preferred_blas_library()
        for bucket, shares in sorted(self._kinds(), reverse=True):
            graph = torch.cuda.CUDAGraph()
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            library = "cublaslt" if bucket in _CUBLASLT_BUCKETS else "cublas"
            torch.backends.cuda.preferred_blas_library(library)
            with torch.cuda.stream(stream):
                self._inputs.fill([], [], bucket)
                batch = self._inputs.batch(bucket)
                self._step(batch, bucket, shares)
            torch.cuda.current_stream().wait_stream(stream)
            # Other threads, as those that watch over collectives, may call the driver meanwhile.
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                logits = self._step(batch, bucket, shares)
            pool = graph.pool()
            self._captured[bucket, shares] = _Captured(graph, logits)
        torch.backends.cuda.preferred_blas_library(default_library)

    def launch_all(self) -> None:
        """Launches every step by itself, on whatever device the model is."""
        for bucket, shares in self._kinds():
            self._step(self._inputs.batch(bucket), bucket, shares)

    def _kinds(self) -> list[tuple[int, bool]]:
        """Every bucket, and whether its sequences share prefixes."""
        kinds = [(bucket, False) for bucket in self._buckets]
        if self._shared is not None:
            kinds += [(bucket, True) for bucket in self._buckets if bucket > 1]
        return kinds

    def replay(
        self, requests: Sequence[Request], sources: Sequence[int]
    ) -> tuple[torch.Tensor, torch.cuda.Event]:
        """Computes the step and draws into ``drawn``; see DecodeInputs.fill for ``sources``.

        Returns the logits (requests, vocabulary), valid until the next replay, and an event with
        its time, for when the device begins.
        """
        bucket = self._bucket(len(requests))
        words = self._inputs.fill(requests, sources, bucket)
        shared = None if self._shared is None else self._shared.fill(requests)
        step = ToldStep(bucket, words, shared)
        if self._tell is not None:
            self._tell(step)
        self._shares = shared is not None
        captured = self._captured[bucket, self._shares]
        # After what the host had to do, so that none of it counts as the device's.
        began = torch.cuda.Event(enable_timing=True)
        began.record()
        captured.graph.replay()
        return captured.logits[: len(requests)], began

    def replay_told(self, step: ToldStep) -> None:
        """Computes what rank 0 does."""
        self._inputs.load(step.words)
        if step.shared is not None:
            assert self._shared is not None
            self._shared.load(step.shared)
        self._captured[step.bucket, step.shared is not None].graph.replay()

    def repeat(self, num_sequences: int) -> None:
        """Replays the last step of this size as it stands: for measuring the device alone."""
        self._captured[self._bucket(num_sequences), self._shares].graph.replay()

    def _bucket(self, num_sequences: int) -> int:
        return next(bucket for bucket in self._buckets if bucket >= num_sequences)

    def _step(self, batch: ForwardBatch, bucket: int, shares: bool) -> torch.Tensor:
        self._inputs.prepare(batch, bucket)
        cascade = self._shared.cascade if shares and self._shared is not None else None
        self._attention.plan_captured(
            batch, self._inputs.tables, self._inputs.table_stride, cascade
        )
        hidden = self._model.forward(batch, self._kv_cache, self._attention)
        logits = self._model.compute_logits(hidden)
        sample(logits, self._inputs.sampling_rows(bucket), self.drawn[:bucket])
        return logits
