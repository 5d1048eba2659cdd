"""Builds a DecoderModel from a checkpoint."""

from collections.abc import Sequence
from typing import Literal

import torch

from engine.config import ModelConfig
from engine.errors import UnsupportedModelError
from engine.kernels.int4_linear import Int4Weight
from engine.kernels.int8_linear import Int8Weight
from engine.kernels.invariant_rows import HEAD_ROW_COUNTS, ROW_COUNTS, invariant_row_counts
from engine.kernels.packed_linear import packing_works
from engine.kernels.select import select_gemm
from engine.layers.attention import Attention
from engine.layers.embedding import DenseVocabulary, Q8Vocabulary, Vocabulary
from engine.layers.linear import (
    DenseLinear,
    InvariantLinear,
    Linear,
    PackedLinear,
    Q4Linear,
    Q8Linear,
)
from engine.layers.mlp import SwiGluMlp
from engine.layers.rms_norm import RmsNorm
from engine.layers.rotary import Rotary
from engine.models.decoder import DecoderLayer, DecoderModel
from engine.parallel.group import Group
from engine.parallel.sharding import GatheredLinear, ShardedCheckpoint, SummedLinear
from engine.weights.checkpoint import Checkpoint
from engine.weights.quantize import as_q4, as_q8
from engine.weights.stored_tensor import GROUP_SIZE, Q4Tensor, Q8Tensor, StoredTensor, dequantize


def load_model(
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    quantization: Literal["none", "q4"] = "none",
    device: torch.device | None = None,
    group: Group | None = None,
) -> DecoderModel:
    """Reads every weight; raises CheckpointError naming the first tensor that does not fit.

    ``dtype`` is that of activations, and of weights too unless ``quantization`` is "q4".
    ``device`` is a GPU, or None for the CPU. ``group``: load this rank's share alone.
    """
    if device is not None:
        from engine.models.gpu_loader import GpuModelLoader

        return GpuModelLoader(checkpoint, dtype, device, group).load()
    return ModelLoader(checkpoint, dtype, quantization, group).load()


class ModelLoader:
    """Builds the layers of one model; what a device builds otherwise is a method of its own."""

    _norm_type = RmsNorm
    _attention_type = Attention
    _mlp_type = SwiGluMlp
    _vocabulary_type = DenseVocabulary

    def __init__(
        self,
        checkpoint: Checkpoint,
        dtype: torch.dtype,
        quantization: str,
        group: Group | None = None,
    ) -> None:
        if group is not None:
            checkpoint = ShardedCheckpoint(checkpoint, group.rank, group.size)
        self._group = group
        self._checkpoint = checkpoint
        self._config: ModelConfig = checkpoint.config
        self._dtype = dtype
        self._quantization = quantization
        self._rotary = Rotary(checkpoint.config, dtype)
        self._row_counts: dict[torch.Size, tuple[int, ...]] = {}

    def load(self) -> DecoderModel:
        layers = [self._layer(index) for index in range(self._config.num_layers)]
        norm = self._norm("model.norm", self._config.hidden_size)
        return DecoderModel(self._config, self._vocabulary(), self._rotary, layers, norm)

    def _layer(self, index: int) -> DecoderLayer:
        prefix = f"model.layers.{index}"
        hidden = self._config.hidden_size
        return DecoderLayer(
            attention_norm=self._norm(f"{prefix}.input_layernorm", hidden),
            attention=self._attention(f"{prefix}.self_attn", index),
            mlp_norm=self._norm(f"{prefix}.post_attention_layernorm", hidden),
            mlp=self._mlp(f"{prefix}.mlp"),
        )

    def _attention(self, prefix: str, index: int) -> Attention:
        config = self._config
        q_size = config.num_heads * config.head_dim
        kv_size = config.num_kv_heads * config.head_dim
        qkv = {"q_proj": q_size, "k_proj": kv_size, "v_proj": kv_size}
        return self._attention_type(
            config,
            index,
            self._rotary,
            qkv=self._linear(prefix, qkv, config.hidden_size, bias=config.attention_bias),
            output=self._summed(
                prefix, {"o_proj": config.hidden_size}, q_size, bias=config.attention_output_bias
            ),
            q_norm=self._norm(f"{prefix}.q_norm", config.head_dim) if config.qk_norm else None,
            k_norm=self._norm(f"{prefix}.k_norm", config.head_dim) if config.qk_norm else None,
        )

    def _mlp(self, prefix: str) -> SwiGluMlp:
        hidden, inner = self._config.hidden_size, self._config.intermediate_size
        bias = self._config.mlp_bias
        gate_up = self._linear(prefix, {"gate_proj": inner, "up_proj": inner}, hidden, bias=bias)
        return self._mlp_type(
            gate_up, self._summed(prefix, {"down_proj": hidden}, inner, bias=bias)
        )

    def _summed(self, prefix: str, parts: dict[str, int], in_size: int, *, bias: bool) -> Linear:
        """A layer whose columns are divided among the ranks; the first one adds the bias."""
        if self._group is None:
            return self._linear(prefix, parts, in_size, bias=bias)
        own_bias = bias and self._group.rank == 0
        return SummedLinear(self._linear(prefix, parts, in_size, bias=own_bias), self._group)

    def _linear(self, prefix: str, parts: dict[str, int], in_size: int, *, bias: bool) -> Linear:
        """One layer from the row-wise stack of ``parts`` (name to number of rows)."""
        stored = [
            self._checkpoint.tensor(f"{prefix}.{name}.weight", (rows, in_size))
            for name, rows in parts.items()
        ]
        joined_bias = self._bias(prefix, parts) if bias else None
        if self._quantization == "q4":
            self._check_groups(prefix, in_size)
            return self._quantized_linear(stored, joined_bias)
        weights = [self._dense(part) for part in stored]
        return self._dense_linear(torch.cat(weights), joined_bias)

    def _bias(self, prefix: str, parts: dict[str, int]) -> torch.Tensor:
        return torch.cat(
            [self._plain(f"{prefix}.{name}.bias", (rows,)) for name, rows in parts.items()]
        )

    def _check_groups(self, name: str, in_size: int) -> None:
        if in_size % GROUP_SIZE:
            raise UnsupportedModelError(
                f"{self._checkpoint.path}: {name} has rows of {in_size}, no multiple of "
                f'{GROUP_SIZE}, which quantization "q4" needs'
            )

    def _dense_linear(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        row_counts: Sequence[int] = ROW_COUNTS,
    ) -> Linear:
        packs = select_gemm("dense", 1) == "onednn_packed" and packing_works(self._dtype)
        linear = PackedLinear(weight, bias) if packs else DenseLinear(weight, bias)
        if self._dtype != torch.float32:
            return linear
        return InvariantLinear(linear, self._invariant(linear, weight.shape, row_counts))

    def _invariant(
        self, linear: Linear, shape: torch.Size, row_counts: Sequence[int]
    ) -> tuple[int, ...]:
        """Found out once for all layers of a shape."""
        if shape not in self._row_counts:
            row = torch.randn(1, shape[1], generator=torch.Generator().manual_seed(0))
            self._row_counts[shape] = invariant_row_counts(
                lambda count: linear(row.repeat(count, 1)), row_counts
            )
        return self._row_counts[shape]

    def _quantized_linear(
        self, stored: Sequence[StoredTensor], bias: torch.Tensor | None
    ) -> Linear:
        """8-bit weights stay so; all others become 4-bit unless they are already."""
        if all(isinstance(part, Q8Tensor) for part in stored):
            joined = Q8Tensor.concatenate([as_q8(part) for part in stored])
            return Q8Linear(Int8Weight.from_stored(joined), bias)
        return Q4Linear(
            Int4Weight.from_stored(Q4Tensor.concatenate([as_q4(part) for part in stored])), bias
        )

    def _vocabulary(self) -> Vocabulary:
        shape = (self._config.vocab_size, self._config.hidden_size)
        embedding = self._checkpoint.tensor("model.embed_tokens.weight", shape)
        tied = self._config.tie_word_embeddings
        head = embedding if tied else self._checkpoint.tensor("lm_head.weight", shape)
        if self._quantization == "q4":
            self._check_groups("model.embed_tokens", shape[1])
            embedding_weight = Int8Weight.from_stored(as_q8(embedding))
            head_weight = embedding_weight if tied else Int8Weight.from_stored(as_q8(head))
            return Q8Vocabulary(embedding_weight, head_weight, self._dtype)
        dense = self._own(embedding)
        return self._vocabulary_type(dense, self._head(dense if tied else self._own(head)))

    def _head(self, weight: torch.Tensor) -> Linear:
        group = self._group
        if group is None or weight.shape[0] % group.size:
            return self._dense_linear(weight, row_counts=HEAD_ROW_COUNTS)
        own = weight.chunk(group.size)[group.rank].clone()
        return GatheredLinear(self._dense_linear(own, row_counts=HEAD_ROW_COUNTS), group)

    def _norm(self, name: str, size: int) -> RmsNorm:
        return self._norm_type(self._plain(f"{name}.weight", (size,)), self._config.rms_norm_eps)

    def _plain(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        return self._own(self._checkpoint.tensor(name, shape))

    def _dense(self, stored: StoredTensor) -> torch.Tensor:
        return dequantize(stored, self._dtype)

    def _own(self, stored: StoredTensor) -> torch.Tensor:
        """A tensor apart from the mapped file, which may change under a running worker."""
        if isinstance(stored, torch.Tensor):
            return stored.to(self._dtype, copy=True)
        return stored.dequantize(self._dtype)
