"""Builds a DecoderModel from a checkpoint."""

from typing import Literal

import torch

from engine.config import ModelConfig
from engine.layers.attention import Attention
from engine.layers.embedding import DenseVocabulary, Vocabulary
from engine.layers.linear import DenseLinear, Linear
from engine.layers.mlp import SwiGluMlp
from engine.layers.rms_norm import RmsNorm
from engine.layers.rotary import Rotary
from engine.models.decoder import DecoderLayer, DecoderModel
from engine.weights.checkpoint import Checkpoint
from engine.weights.stored_tensor import concatenate_rows, dequantize


def load_model(
    checkpoint: Checkpoint, dtype: torch.dtype, quantization: Literal["none", "q4"] = "none"
) -> DecoderModel:
    """Reads every weight; raises CheckpointError naming the first tensor that does not fit.

    ``dtype`` is that of activations, and of weights too unless ``quantization`` is "q4".
    """
    return _ModelLoader(checkpoint, dtype, quantization).load()


class _ModelLoader:
    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype, quantization: str) -> None:
        self._checkpoint = checkpoint
        self._config: ModelConfig = checkpoint.config
        self._dtype = dtype
        self._quantization = quantization
        self._rotary = Rotary(checkpoint.config, dtype)

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
        return Attention(
            config,
            index,
            self._rotary,
            qkv=self._linear(prefix, qkv, config.hidden_size, bias=config.attention_bias),
            output=self._linear(
                prefix, {"o_proj": config.hidden_size}, q_size, bias=config.attention_output_bias
            ),
            q_norm=self._norm(f"{prefix}.q_norm", config.head_dim) if config.qk_norm else None,
            k_norm=self._norm(f"{prefix}.k_norm", config.head_dim) if config.qk_norm else None,
        )

    def _mlp(self, prefix: str) -> SwiGluMlp:
        hidden, inner = self._config.hidden_size, self._config.intermediate_size
        bias = self._config.mlp_bias
        gate_up = self._linear(prefix, {"gate_proj": inner, "up_proj": inner}, hidden, bias=bias)
        return SwiGluMlp(gate_up, self._linear(prefix, {"down_proj": hidden}, inner, bias=bias))

    def _linear(self, prefix: str, parts: dict[str, int], in_size: int, *, bias: bool) -> Linear:
        """One layer from the row-wise stack of ``parts`` (name to number of rows)."""
        stored = [
            self._checkpoint.tensor(f"{prefix}.{name}.weight", (rows, in_size))
            for name, rows in parts.items()
        ]
        weight = dequantize(concatenate_rows(stored, self._dtype), self._dtype)
        if not bias:
            return DenseLinear(weight)
        biases = [self._plain(f"{prefix}.{name}.bias", (rows,)) for name, rows in parts.items()]
        return DenseLinear(weight, torch.cat(biases))

    def _vocabulary(self) -> Vocabulary:
        shape = (self._config.vocab_size, self._config.hidden_size)
        embedding = self._plain("model.embed_tokens.weight", shape)
        tied = self._config.tie_word_embeddings
        return DenseVocabulary(
            embedding, embedding if tied else self._plain("lm_head.weight", shape)
        )

    def _norm(self, name: str, size: int) -> RmsNorm:
        return RmsNorm(self._plain(f"{name}.weight", (size,)), self._config.rms_norm_eps)

    def _plain(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        return dequantize(self._checkpoint.tensor(name, shape), self._dtype)
