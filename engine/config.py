"""Settings of an engine, and the shape of the model it runs."""

from dataclasses import dataclass
from typing import Literal

RopeScalingKind = Literal["none", "linear", "llama3", "yarn", "factors"]


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Rotary scaling; fields not used by ``kind`` keep their defaults. Names follow config.json.

    Kind "factors" divides each rotary frequency by one of ``frequency_factors`` (head_dim / 2 of
    them), which is how GGUF files carry the scaling of Llama 3.
    """

    kind: RopeScalingKind = "none"
    factor: float = 1.0
    original_max_position_embeddings: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    frequency_factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One decoder-only family, told apart by flags. Names follow config.json."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    rope_scaling: RopeScaling = RopeScaling()
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    # Layers (by index) that use the window; None: all of them, where there is a window.
    sliding_window_layers: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How an engine runs a checkpoint.

    ``model_path`` is a GGUF file or a Hugging Face folder. ``dtype`` is that of activations and
    KV. ``quantization`` "q4" keeps 4-bit weights 4-bit; "none" turns weights into ``dtype``.
    ``max_num_batched_tokens`` bounds the tokens of a step, ``max_num_seqs`` its sequences.
    ``tensor_parallel_size`` processes compute every step together, on a GPU each.
    ``device`` "cuda" is the current NVIDIA GPU; there ``kv_memory_bytes`` 0 takes what is free but
    for a reserve, as one of ``workers_on_device`` processes. With ``captures_decode`` decode steps
    become CUDA graphs. ``load_format`` "dummy" draws random weights, for measuring.
    ``free_list_seed`` shuffles the free list (tests); None hands blocks out in order.
    """

    model_path: str
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    quantization: Literal["none", "q4"] = "none"
    block_size: int = 16
    kv_memory_bytes: int = 1 << 30
    max_num_batched_tokens: int = 256
    max_num_seqs: int = 256
    num_threads: int = 1
    enable_prefix_cache: bool = True
    free_list_seed: int | None = None
    device: Literal["cpu", "cuda"] = "cpu"
    workers_on_device: int = 1
    tensor_parallel_size: int = 1
    captures_decode: bool = True
    load_format: Literal["auto", "dummy"] = "auto"
