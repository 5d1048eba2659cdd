"""Tiny random checkpoints that exercise every feature, made by transformers itself.

Default initialisation hides mistakes (zero biases, unit norms, weights so small that attention is
flat), so everything here is drawn: matrices and biases with std 0.2, norms around 1 with std 0.2.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

STD = 0.2
ORIGINAL_CONTEXT = 32
WINDOW = 8
COMMON: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 160,
    "max_position_embeddings": 128,
    "eos_token_id": 7,
}


@dataclass(frozen=True, slots=True)
class Case:
    """``features``: fields of ModelConfig, each with the value that drops what the case has."""

    name: str
    config: type[PreTrainedConfig]
    settings: dict[str, Any] = field(default_factory=dict)
    features: tuple[str, ...] = ()


def rope(rope_type: str, **values: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": rope_type, "rope_theta": 1000.0, **values}}


LLAMA3 = rope(
    "llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=ORIGINAL_CONTEXT,
)
YARN: dict[str, Any] = {"factor": 4.0, "original_max_position_embeddings": ORIGINAL_CONTEXT}
CASES = [
    Case("llama2", LlamaConfig, {"num_key_value_heads": 4}, ("tie_word_embeddings",)),
    Case("llama3", LlamaConfig, LLAMA3, ("rope_scaling", "rope_theta")),
    Case("llama3-tied", LlamaConfig, {**LLAMA3, "tie_word_embeddings": True}, ("rope_scaling",)),
    Case("llama-linear", LlamaConfig, rope("linear", factor=4.0), ("rope_scaling",)),
    Case("llama-yarn", LlamaConfig, rope("yarn", **YARN), ("rope_scaling",)),
    Case(
        "llama-yarn-mscale",
        LlamaConfig,
        rope("yarn", **YARN, mscale=1.5, mscale_all_dim=0.7, beta_fast=16.0, beta_slow=2.0),
        ("rope_scaling",),
    ),
    Case(
        "llama-yarn-untruncated",
        LlamaConfig,
        rope("yarn", **YARN, attention_factor=1.3, truncate=False),
        ("rope_scaling",),
    ),
    Case(
        "llama-biases",
        LlamaConfig,
        {"attention_bias": True, "mlp_bias": True},
        ("attention_bias", "attention_output_bias", "mlp_bias"),
    ),
    Case("llama-head-dim", LlamaConfig, {"head_dim": 32, "rms_norm_eps": 0.05}, ("rms_norm_eps",)),
    Case("mistral", MistralConfig, {"sliding_window": WINDOW, "head_dim": 32}, ("sliding_window",)),
    Case("mistral-no-window", MistralConfig, {"sliding_window": None}),
    Case("qwen2", Qwen2Config, {"tie_word_embeddings": True}, ("attention_bias",)),
    Case(
        "qwen2-window",
        Qwen2Config,
        {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
        ("sliding_window", "sliding_window_layers"),
    ),
    Case(
        "qwen2-layer-types",
        Qwen2Config,
        {
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
        ("sliding_window", "sliding_window_layers"),
    ),
    Case("qwen2-window-unused", Qwen2Config, {"use_sliding_window": False, "sliding_window": 8}),
    Case("qwen3", Qwen3Config, {"head_dim": 32, "tie_word_embeddings": True}, ("qk_norm",)),
    Case(
        "qwen3-biases",
        Qwen3Config,
        {"head_dim": 16, "attention_bias": True},
        ("attention_bias", "attention_output_bias", "qk_norm"),
    ),
]


def write_checkpoint(
    case: Case, folder: Path, seed: int = 0, **save_settings: Any
) -> PreTrainedModel:
    """Writes ``case`` as a Hugging Face folder and returns the model in float32."""
    torch.manual_seed(seed)
    config = case.config(**{**COMMON, **case.settings})
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, STD)
    model.save_pretrained(folder, **save_settings)
    return model


def random_prompt(length: int, seed: int = 1) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(COMMON["vocab_size"], (length,), generator=generator).tolist()
