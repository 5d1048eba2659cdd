"""llama.cpp, through llama-cpp-python's low-level API: all sequences in one ``llama_decode``."""

import ctypes
import time
from collections.abc import Sequence
from pathlib import Path

import llama_cpp
import numpy as np

# Kept for as long as llama.cpp may call it.
_DISCARD = llama_cpp.llama_log_callback(lambda level, text, user_data: None)


class LlamaRival:
    """Holds a model and a context for ``num_seqs`` sequences of ``max_len`` tokens each.

    Each sequence has its own KV buffer: one for all was slower in every case.
    """

    def __init__(
        self, path: Path, *, flash: bool, num_threads: int, num_seqs: int, max_len: int
    ) -> None:
        model_params = llama_cpp.llama_model_default_params()
        model_params.n_gpu_layers = 0
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), model_params)
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = num_seqs * max_len
        params.n_batch = params.n_ubatch = 512
        params.n_seq_max = num_seqs
        params.n_threads = params.n_threads_batch = num_threads
        params.flash_attn_type = (
            llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
            if flash
            else llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
        params.kv_unified = False
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError(f"llama.cpp has no memory for {num_seqs} x {max_len} tokens")
        self._memory = llama_cpp.llama_get_memory(self._context)
        vocab = llama_cpp.llama_model_get_vocab(self._model)
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(vocab)
        self._batch = llama_cpp.llama_batch_init(512, 0, 1)

    def close(self) -> None:
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self._context)
        llama_cpp.llama_model_free(self._model)

    def prefill(self, prompt: Sequence[int], seq: int = 0) -> float:
        """Seconds from the prompt (at most 512 tokens) to its first token."""
        llama_cpp.llama_memory_seq_rm(self._memory, seq, 0, -1)
        started = time.perf_counter()
        last = len(prompt) - 1
        self._decode([(token, at, seq, at == last) for at, token in enumerate(prompt)])
        self._greedy(1)
        return time.perf_counter() - started

    def decode(self, num_seqs: int, context_len: int, num_steps: int) -> float:
        """Seconds of ``num_steps`` greedy steps of sequences that hold ``context_len`` tokens."""
        for seq in range(num_seqs):
            llama_cpp.llama_memory_seq_rm(self._memory, seq, context_len, -1)
        tokens = [100 + seq for seq in range(num_seqs)]
        started = time.perf_counter()
        for position in range(context_len, context_len + num_steps):
            self._decode([(token, position, seq, True) for seq, token in enumerate(tokens)])
            tokens = self._greedy(num_seqs)
        return time.perf_counter() - started

    def _decode(self, entries: Sequence[tuple[int, int, int, bool]]) -> None:
        batch = self._batch
        batch.n_tokens = len(entries)
        for index, (token, position, seq, wants_logits) in enumerate(entries):
            batch.token[index] = token
            batch.pos[index] = position
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = seq
            batch.logits[index] = wants_logits
        if code := llama_cpp.llama_decode(self._context, batch):
            raise RuntimeError(f"llama_decode of {len(entries)} tokens returned {code}")

    def _greedy(self, num_rows: int) -> list[int]:
        pointer = llama_cpp.llama_get_logits(self._context)
        logits = np.ctypeslib.as_array(pointer, shape=(num_rows, self._vocab_size))
        best: list[int] = logits.argmax(axis=-1).tolist()
        return best


def silence() -> None:
    """Stops llama.cpp from logging to stderr."""
    llama_cpp.llama_log_set(_DISCARD, ctypes.c_void_p(0))


def write_bf16(source: Path, target: Path) -> None:
    """The same weights as ``source`` in bf16, so that both engines compute in it."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_BF16
    params.allow_requantize = True
    if llama_cpp.llama_model_quantize(
        str(source).encode(), str(target).encode(), ctypes.byref(params)
    ):
        raise RuntimeError(f"llama.cpp cannot turn {source} into bf16")
