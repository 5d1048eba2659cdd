"""The decoder-only transformer that every supported family is."""

from collections.abc import Sequence

import torch

from engine.attention.base import AttentionBackend
from engine.batch import ForwardBatch
from engine.config import ModelConfig
from engine.kv_cache import KvCache
from engine.layers.attention import Attention
from engine.layers.embedding import Vocabulary
from engine.layers.mlp import SwiGluMlp
from engine.layers.rms_norm import RmsNorm
from engine.layers.rotary import Rotary, RotaryAngles


class DecoderLayer:
    """Attention and feed-forward, each after a norm and added to its input."""

    __slots__ = ("_attention", "_attention_norm", "_mlp", "_mlp_norm")

    def __init__(
        self, attention_norm: RmsNorm, attention: Attention, mlp_norm: RmsNorm, mlp: SwiGluMlp
    ) -> None:
        self._attention_norm = attention_norm
        self._attention = attention
        self._mlp_norm = mlp_norm
        self._mlp = mlp

    def __call__(
        self,
        x: torch.Tensor,
        delta: torch.Tensor | None,
        angles: RotaryAngles,
        batch: ForwardBatch,
        kv_cache: KvCache,
        backend: AttentionBackend,
    ) -> torch.Tensor:
        """Adds to ``x`` (T, hidden) in place, ``delta`` of the layer before it first; returns what
        is still to add. So addition and norm are neighbours, and one kernel may do both."""
        normed = self._norm(x, delta)
        attended = self._attention(normed, angles, batch, kv_cache, backend)
        return self._mlp(self._mlp_norm.add(x, attended))

    def finish(
        self,
        x: torch.Tensor,
        delta: torch.Tensor | None,
        angles: RotaryAngles,
        batch: ForwardBatch,
        kv_cache: KvCache,
        backend: AttentionBackend,
    ) -> torch.Tensor:
        """The same as the last layer: hidden states (R, hidden) of ``logit_indices`` alone, what
        the step needs beyond K and V. Of the others nothing after attention is computed."""
        normed = self._norm(x, delta)
        # As many as there are tokens: those in their order, as in every decode step.
        rows = None if len(batch.logit_indices) == len(x) else batch.logit_indices
        attended = self._attention(normed, angles, batch, kv_cache, backend, rows)
        if rows is not None:
            x = x[rows]
        return x.add_(self._mlp(self._mlp_norm.add(x, attended))) if len(x) else x

    def _norm(self, x: torch.Tensor, delta: torch.Tensor | None) -> torch.Tensor:
        return self._attention_norm(x) if delta is None else self._attention_norm.add(x, delta)

    def tensors(self) -> tuple[torch.Tensor, ...]:
        parts = (self._attention_norm, self._attention, self._mlp_norm, self._mlp)
        return tuple(tensor for part in parts for tensor in part.tensors())


class DecoderModel:
    """Runs under ``torch.inference_mode``; nothing here records gradients."""

    def __init__(
        self,
        config: ModelConfig,
        vocabulary: Vocabulary,
        rotary: Rotary,
        layers: Sequence[DecoderLayer],
        norm: RmsNorm,
    ) -> None:
        self.config = config
        self._vocabulary = vocabulary
        self._rotary = rotary
        self._layers = tuple(layers)
        self._norm = norm

    def forward(
        self, batch: ForwardBatch, kv_cache: KvCache, attention: AttentionBackend
    ) -> torch.Tensor:
        """Hidden states of the tokens that become logits, (R, hidden), before the final norm.

        The caller has planned ``attention`` for this batch. K and V of all tokens are in
        ``kv_cache`` afterwards.
        """
        x = self._vocabulary.embed(batch.token_ids)
        angles = self._rotary.angles(batch.positions)
        delta = None
        *layers, last = self._layers
        for layer in layers:
            delta = layer(x, delta, angles, batch, kv_cache, attention)
        return last.finish(x, delta, angles, batch, kv_cache, attention)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """What ``forward`` returned, (R, hidden), to logits (R, vocabulary) float32."""
        return self._vocabulary.logits(self._norm(hidden))

    def resident_bytes(self) -> int:
        """Bytes of all weights, each tensor counted once."""
        tensors = [*self._vocabulary.tensors(), *self._norm.tensors()]
        for layer in self._layers:
            tensors += layer.tensors()
        return sum({id(tensor): tensor.nbytes for tensor in tensors}.values())
