"""ModelConfig from the metadata of a GGUF file."""

import math
from typing import Any

from engine.config import ModelConfig, RopeScaling
from engine.errors import CheckpointError, UnsupportedModelError
from modelfiles.gguf_file import GgufFile

SUPPORTED_ARCHITECTURES = ("llama", "qwen2", "qwen3")
_ROPE_FACTORS = "rope_freqs.weight"


class _Metadata:
    """Keys of one architecture; a missing one without default is a CheckpointError."""

    def __init__(self, file: GgufFile, architecture: str) -> None:
        self._file = file
        self._architecture = architecture

    def get(self, key: str, default: Any = None) -> Any:
        return self._file.metadata.get(f"{self._architecture}.{key}", default)

    def size(self, key: str, default: int | None = None) -> int:
        """A count that is the same in all layers."""
        value = self.get(key, default)
        if value is None:
            raise CheckpointError(f"{self._file.path}: {self._architecture}.{key} is missing")
        if not isinstance(value, int) or value < 1:
            raise UnsupportedModelError(
                f"{self._file.path}: {self._architecture}.{key} is {value!r}; "
                f"supported: one number for all layers"
            )
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key, default)
        if not isinstance(value, int | float):
            raise CheckpointError(f"{self._file.path}: {self._architecture}.{key} is {value!r}")
        return float(value)


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
    num_heads = keys.size("attention.head_count")
    return ModelConfig(
        architecture=architecture,
        vocab_size=embedding.shape[0],
        hidden_size=keys.size("embedding_length"),
        intermediate_size=keys.size("feed_forward_length"),
        num_layers=keys.size("block_count"),
        num_heads=num_heads,
        num_kv_heads=keys.size("attention.head_count_kv", num_heads),
        head_dim=_head_dim(file, keys, num_heads),
        rms_norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        rope_theta=keys.number("rope.freq_base", 10000.0),
        max_position_embeddings=keys.size("context_length"),
        rope_scaling=_rope_scaling(file, keys),
        tie_word_embeddings="output.weight" not in file.entries,
        attention_bias="blk.0.attn_q.bias" in file.entries,
        attention_output_bias="blk.0.attn_output.bias" in file.entries,
        mlp_bias="blk.0.ffn_up.bias" in file.entries,
        qk_norm="blk.0.attn_q_norm.weight" in file.entries,
        sliding_window=int(keys.get("attention.sliding_window", 0)) or None,
    )


def _head_dim(file: GgufFile, keys: _Metadata, num_heads: int) -> int:
    head_dim = keys.size("attention.key_length", keys.size("embedding_length") // num_heads)
    value_dim = keys.size("attention.value_length", head_dim)
    rotary_dim = keys.size("rope.dimension_count", head_dim)
    if not head_dim == value_dim == rotary_dim:
        raise UnsupportedModelError(
            f"{file.path}: head sizes of keys ({head_dim}), values ({value_dim}) and rotary part "
            f"({rotary_dim}) differ, which is not supported"
        )
    return head_dim


def _rope_scaling(file: GgufFile, keys: _Metadata) -> RopeScaling:
    if _ROPE_FACTORS in file.entries:
        return RopeScaling(kind="factors", frequency_factors=_rope_factors(file))
    kind = keys.get("rope.scaling.type", "none")
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1.0))
    if kind == "linear" or (kind == "none" and factor != 1.0):
        return RopeScaling(kind="linear", factor=factor)
    if kind == "yarn":
        magnitude = keys.number("rope.scaling.attn_factor", 1.0)
        return RopeScaling(
            kind="yarn",
            factor=factor,
            original_max_position_embeddings=keys.size(
                "rope.scaling.original_context_length", keys.size("context_length")
            ),
            beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0),
            attention_factor=magnitude * (1.0 + 0.1 * math.log(max(factor, 1.0))),
        )
    if kind != "none":
        raise UnsupportedModelError(
            f"{file.path}: rope scaling {kind} is not supported; supported: none, linear, yarn"
        )
    return RopeScaling()


def _rope_factors(file: GgufFile) -> tuple[float, ...]:
    if (kind := file.entries[_ROPE_FACTORS].kind) != "F32":
        raise UnsupportedModelError(
            f"{file.path}: tensor {_ROPE_FACTORS} is of type {kind}; supported: F32"
        )
    return tuple(file.raw(_ROPE_FACTORS).cast("f"))
