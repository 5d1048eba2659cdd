"""ModelConfig from the metadata of a GGUF file."""

import math
from typing import Any

import torch

from engine.config import ModelConfig, RopeScaling
from engine.errors import CheckpointError, UnsupportedModelError
from engine.weights.gguf_file import GgufFile
from engine.weights.stored_tensor import dequantize

SUPPORTED_ARCHITECTURES = ("llama", "qwen2", "qwen3")
_EOS_KEYS = ("eos", "eot", "eom")
_ROPE_FACTORS = "rope_freqs.weight"


class _Metadata:
    """Keys of one architecture; a missing one without default is a CheckpointError."""

    def __init__(self, file: GgufFile, architecture: str) -> None:
        self._file = file
        self._architecture = architecture

    def get(self, key: str, default: Any = None) -> Any:
        return self._file.metadata.get(f"{self._architecture}.{key}", default)

    def require(self, key: str) -> Any:
        if (value := self.get(key)) is None:
            raise CheckpointError(f"{self._file.path}: {self._architecture}.{key} is missing")
        return value


def config_from_gguf(file: GgufFile) -> ModelConfig:
    """Raises UnsupportedModelError for architectures and features that Baton does not run."""
    architecture = str(file.metadata.get("general.architecture"))
    if architecture not in SUPPORTED_ARCHITECTURES:
        raise UnsupportedModelError(
            f"{file.path}: architecture {architecture} is not supported; "
            f"supported in GGUF files: {', '.join(SUPPORTED_ARCHITECTURES)}"
        )
    keys = _Metadata(file, architecture)
    if keys.get("expert_count", 0):
        raise UnsupportedModelError(f"{file.path}: mixture of experts is not supported")
    embedding = file.entries.get("token_embd.weight")
    if embedding is None:
        raise CheckpointError(f"{file.path}: tensor token_embd.weight is missing")
    num_heads = int(keys.require("attention.head_count"))
    return ModelConfig(
        architecture=architecture,
        vocab_size=embedding.shape[0],
        hidden_size=int(keys.require("embedding_length")),
        intermediate_size=int(keys.require("feed_forward_length")),
        num_layers=int(keys.require("block_count")),
        num_heads=num_heads,
        num_kv_heads=int(keys.get("attention.head_count_kv", num_heads)),
        head_dim=_head_dim(file, keys, num_heads),
        rms_norm_eps=float(keys.require("attention.layer_norm_rms_epsilon")),
        rope_theta=float(keys.get("rope.freq_base", 10000.0)),
        max_position_embeddings=int(keys.require("context_length")),
        rope_scaling=_rope_scaling(file, keys),
        tie_word_embeddings="output.weight" not in file.entries,
        attention_bias="blk.0.attn_q.bias" in file.entries,
        attention_output_bias="blk.0.attn_output.bias" in file.entries,
        mlp_bias="blk.0.ffn_up.bias" in file.entries,
        qk_norm="blk.0.attn_q_norm.weight" in file.entries,
        sliding_window=int(keys.get("attention.sliding_window", 0)) or None,
        eos_token_ids=_eos_token_ids(file),
    )


def _head_dim(file: GgufFile, keys: _Metadata, num_heads: int) -> int:
    head_dim = int(keys.get("attention.key_length", keys.require("embedding_length") // num_heads))
    value_dim = int(keys.get("attention.value_length", head_dim))
    rotary_dim = int(keys.get("rope.dimension_count", head_dim))
    if not head_dim == value_dim == rotary_dim:
        raise UnsupportedModelError(
            f"{file.path}: head sizes of keys ({head_dim}), values ({value_dim}) and rotary part "
            f"({rotary_dim}) differ, which is not supported"
        )
    return head_dim


def _rope_scaling(file: GgufFile, keys: _Metadata) -> RopeScaling:
    if _ROPE_FACTORS in file.entries:
        factors = dequantize(file.tensor(_ROPE_FACTORS), torch.float32)
        return RopeScaling(kind="factors", frequency_factors=tuple(factors.tolist()))
    kind = keys.get("rope.scaling.type", "none")
    factor = float(keys.get("rope.scaling.factor", keys.get("rope.scale_linear", 1.0)))
    if kind == "linear" or (kind == "none" and factor != 1.0):
        return RopeScaling(kind="linear", factor=factor)
    if kind == "yarn":
        magnitude = float(keys.get("rope.scaling.attn_factor", 1.0))
        return RopeScaling(
            kind="yarn",
            factor=factor,
            original_max_position_embeddings=int(
                keys.get("rope.scaling.original_context_length", keys.require("context_length"))
            ),
            beta_fast=float(keys.get("rope.scaling.yarn_beta_fast", 32.0)),
            beta_slow=float(keys.get("rope.scaling.yarn_beta_slow", 1.0)),
            attention_factor=magnitude * (1.0 + 0.1 * math.log(max(factor, 1.0))),
        )
    if kind != "none":
        raise UnsupportedModelError(
            f"{file.path}: rope scaling {kind} is not supported; supported: none, linear, yarn"
        )
    return RopeScaling()


def _eos_token_ids(file: GgufFile) -> frozenset[int]:
    ids = (file.metadata.get(f"tokenizer.ggml.{key}_token_id") for key in _EOS_KEYS)
    return frozenset(int(token_id) for token_id in ids if token_id is not None)
