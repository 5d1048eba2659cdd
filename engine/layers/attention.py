"""Grouped-query self-attention over the paged KV pool."""

import torch

from engine.attention.base import AttentionBackend
from engine.batch import ForwardBatch
from engine.config import ModelConfig
from engine.kv_cache import KvCache
from engine.layers.linear import Linear
from engine.layers.rms_norm import RmsNorm
from engine.layers.rotary import Rotary, RotaryAngles


class Attention:
    """One GEMM for q, k and v; q and k are rotated together, as heads of one tensor."""

    def __init__(
        self,
        config: ModelConfig,
        layer: int,
        rotary: Rotary,
        *,
        qkv: Linear,
        output: Linear,
        q_norm: RmsNorm | None,
        k_norm: RmsNorm | None,
    ) -> None:
        self._layer = layer
        self._rotary = rotary
        self._num_heads = config.num_heads
        self._num_rotated = config.num_heads + config.num_kv_heads
        self._num_all = config.num_heads + 2 * config.num_kv_heads
        self._head_dim = config.head_dim
        self._norm_epsilon = config.rms_norm_eps
        layers = config.sliding_window_layers
        self._window = config.sliding_window if layers is None or layer in layers else None
        self._qkv = qkv
        self._output = output
        self._q_norm = q_norm
        self._k_norm = k_norm

    def __call__(
        self,
        x: torch.Tensor,
        angles: RotaryAngles,
        batch: ForwardBatch,
        kv_cache: KvCache,
        backend: AttentionBackend,
        rows: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """``x`` (T, hidden) to the same shape; stores the tokens' K and V on the way.

        With ``rows``, (R,) places of tokens, what they attend to alone: (R, hidden).
        """
        num_tokens = x.shape[0]
        qkv = self._qkv(x).view(num_tokens, self._num_all, self._head_dim)
        q_and_k = self._normalize(qkv[:, : self._num_rotated])
        rotated = self._rotary.rotate(q_and_k, angles)
        k, v = rotated[:, self._num_heads :], qkv[:, self._num_rotated :]
        kv_cache.store(self._layer, k, v, batch)
        if rows is not None and not len(rows):
            return x[:0]
        return self._project(
            backend.run(self._layer, rotated[:, : self._num_heads], self._window), rows
        )

    def _project(self, attended: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
        """``attended`` (T, heads, head_dim) to (T or R, hidden)."""
        if rows is not None:
            attended = attended[rows]
        return self._output(attended.reshape(len(attended), -1))

    def _normalize(self, q_and_k: torch.Tensor) -> torch.Tensor:
        if self._q_norm is None or self._k_norm is None:
            return q_and_k
        q, k = q_and_k[:, : self._num_heads], q_and_k[:, self._num_heads :]
        return torch.cat((self._q_norm(q), self._k_norm(k)), dim=1)

    def tensors(self) -> tuple[torch.Tensor, ...]:
        tensors = [*self._qkv.tensors(), *self._output.tensors()]
        for norm in (self._q_norm, self._k_norm):
            tensors += [] if norm is None else norm.tensors()
        return tuple(tensors)
