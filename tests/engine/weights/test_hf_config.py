"""config.json in its spellings, and what is refused by name."""

from typing import Any

import pytest

from engine.config import ModelConfig, RopeScaling
from engine.errors import CheckpointError, UnsupportedModelError
from engine.weights.hf_config import config_from_hf

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 160,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
}
LLAMA3_SCALING = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def read(changes: dict[str, Any]) -> ModelConfig:
    return config_from_hf("dir/config.json", {**LLAMA, **changes})


def qwen(changes: dict[str, Any]) -> ModelConfig:
    return read({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", **changes})


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3_SCALING}},
        {"rope_theta": 5e5, "rope_scaling": {"type": "llama3", **LLAMA3_SCALING}},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3_SCALING}},
    ],
    ids=["transformers 4", "transformers 4 with type", "transformers 5"],
)
def test_every_spelling_of_rope_gives_the_same_config(spelling: dict[str, Any]) -> None:
    config = read(spelling)
    assert config.rope_theta == 5e5
    assert config.rope_scaling == RopeScaling(
        kind="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=32,
    )


def test_rope_defaults_to_unscaled_with_theta_10000() -> None:
    config = read({"rope_scaling": None})
    assert config.rope_theta == 10000.0
    assert config.rope_scaling == RopeScaling()


def test_original_context_defaults_to_the_whole_context() -> None:
    scaling = read({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}).rope_scaling
    assert scaling.original_max_position_embeddings == 128


def test_yarn_factor_defaults_to_the_ratio_of_contexts() -> None:
    scaling = read({"rope_scaling": {"type": "yarn", "original_max_position_embeddings": 32}})
    assert scaling.rope_scaling.factor == 4.0


def test_missing_kv_heads_and_head_size_follow_from_the_heads() -> None:
    config = read({"num_key_value_heads": None})
    assert (config.num_kv_heads, config.head_dim) == (4, 16)


def test_the_family_is_known_by_model_type_where_architectures_is_missing() -> None:
    assert read({"architectures": None}).architecture == "llama"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"sliding_window": 8}, (None, None)),
        ({"sliding_window": 8, "use_sliding_window": False}, (None, None)),
        ({"sliding_window": 8, "use_sliding_window": True}, (None, None)),
        (
            {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1},
            (8, (1, 2, 3)),
        ),
        (
            {
                "sliding_window": 8,
                "use_sliding_window": True,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
            },
            (8, (0, 2)),
        ),
    ],
    ids=["unset", "off", "no layer reaches 28", "by max_window_layers", "by layer_types"],
)
def test_qwen_uses_its_window_only_where_told(
    settings: dict[str, Any], expected: tuple[int | None, tuple[int, ...] | None]
) -> None:
    config = qwen(settings)
    assert (config.sliding_window, config.sliding_window_layers) == expected


def test_mistral_uses_its_window_in_all_layers() -> None:
    names = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
    assert read({**names, "sliding_window": 8}).sliding_window == 8
    assert read({**names, "sliding_window": None}).sliding_window is None
    assert read(names).sliding_window == 4096


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"architectures": ["GemmaForCausalLM"]}, "GemmaForCausalLM.*LlamaForCausalLM.*Qwen3"),
        ({"architectures": [], "model_type": "mamba"}, "mamba.*LlamaForCausalLM.*MistralFor"),
        ({"hidden_act": "gelu"}, "hidden_act gelu.*silu"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "longrope.*default, linear, llama3, yarn"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "between layers"),
        ({"partial_rotary_factor": 0.5}, r"partial_rotary_factor 0\.5"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
    ],
)
def test_what_is_unsupported_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModelError, match=rf"dir/config\.json: .*{named}"):
        read(changes)


@pytest.mark.parametrize("value", [None, "64", 6.5, -1], ids=str)
def test_a_malformed_size_is_named(value: Any) -> None:
    with pytest.raises(CheckpointError, match=r"dir/config\.json: hidden_size is"):
        read({"hidden_size": value})


def test_heads_that_do_not_divide_are_named() -> None:
    with pytest.raises(CheckpointError, match=r"num_attention_heads \(4\).*\(3\)"):
        read({"num_key_value_heads": 3})


def test_layer_types_of_another_length_are_named() -> None:
    with pytest.raises(CheckpointError, match="layer_types has 1 entries for 4 layers"):
        qwen({"use_sliding_window": True, "layer_types": ["sliding_attention"]})
