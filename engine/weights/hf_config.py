"""ModelConfig from a config.json, in the spellings of transformers 4 and 5."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from engine.config import ModelConfig, RopeScaling, RopeScalingKind
from engine.errors import CheckpointError, UnsupportedModelError

_ROPE_KINDS: dict[str, RopeScalingKind] = {
    "default": "none",
    "linear": "linear",
    "llama3": "llama3",
    "yarn": "yarn",
}
_ROPE_SETTINGS = (
    "low_freq_factor",
    "high_freq_factor",
    "beta_fast",
    "beta_slow",
    "attention_factor",
    "mscale",
    "mscale_all_dim",
    "truncate",
)
_WINDOWED = "sliding_attention"


@dataclass(frozen=True, slots=True)
class _Family:
    """What an architecture fixes, and what its config.json may leave out.

    ``configures_bias``: the key ``attention_bias`` decides for q, k, v and output alike.
    ``windows_by_layer``: ``use_sliding_window`` and ``layer_types`` decide which layers have one.
    """

    model_type: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    qkv_bias: bool = False
    configures_bias: bool = False
    configures_mlp_bias: bool = False
    qk_norm: bool = False
    windows: bool = False
    windows_by_layer: bool = False


_FAMILIES = {
    "LlamaForCausalLM": _Family("llama", configures_bias=True, configures_mlp_bias=True),
    "MistralForCausalLM": _Family(
        "mistral", {"num_key_value_heads": 8, "sliding_window": 4096}, windows=True
    ),
    "Qwen2ForCausalLM": _Family(
        "qwen2",
        {"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28},
        qkv_bias=True,
        windows_by_layer=True,
    ),
    "Qwen3ForCausalLM": _Family(
        "qwen3",
        {
            "num_key_value_heads": 32,
            "sliding_window": 4096,
            "max_window_layers": 28,
            "head_dim": 128,
        },
        configures_bias=True,
        qk_norm=True,
        windows_by_layer=True,
    ),
}
SUPPORTED_ARCHITECTURES = tuple(_FAMILIES)


def config_from_hf(path: str, config: Mapping[str, Any]) -> ModelConfig:
    """``path`` is that of config.json, for messages.

    Raises UnsupportedModelError for an architecture or feature that Baton does not run, and
    CheckpointError for a missing or malformed value.
    """
    return _ConfigReader(path, config).read()


class _ConfigReader:
    def __init__(self, path: str, config: Mapping[str, Any]) -> None:
        self._path = path
        self._family = _family_of(path, config)
        self._values = {**self._family.defaults, **config}

    def read(self) -> ModelConfig:
        self._refuse_unsupported()
        self._check_heads()
        family = self._family
        num_heads = self._int("num_attention_heads")
        hidden_size = self._int("hidden_size")
        num_layers = self._int("num_hidden_layers")
        bias = family.configures_bias and bool(self._values.get("attention_bias"))
        window, window_layers = self._sliding_window(num_layers)
        return ModelConfig(
            architecture=family.model_type,
            vocab_size=self._int("vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=self._int("intermediate_size"),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=self._int("num_key_value_heads", num_heads),
            head_dim=self._int("head_dim", hidden_size // num_heads),
            rms_norm_eps=float(self._values.get("rms_norm_eps", 1e-6)),
            rope_theta=self._rope_theta(),
            max_position_embeddings=self._int("max_position_embeddings"),
            rope_scaling=self._rope_scaling(),
            tie_word_embeddings=bool(self._values.get("tie_word_embeddings", False)),
            attention_bias=bias or family.qkv_bias,
            attention_output_bias=bias,
            mlp_bias=family.configures_mlp_bias and bool(self._values.get("mlp_bias")),
            qk_norm=family.qk_norm,
            sliding_window=window,
            sliding_window_layers=window_layers,
        )

    def _refuse_unsupported(self) -> None:
        activation = self._values.get("hidden_act", "silu")
        if activation != "silu":
            self._refuse(f"hidden_act {activation}", "silu")
        if (quantization := self._values.get("quantization_config")) is not None:
            method = dict(quantization).get("quant_method", "of unknown method")
            self._refuse(f"quantization {method}", "weights in float32, float16 or bfloat16")
        partial = self._rope_value("partial_rotary_factor", 1.0)
        if partial != 1.0:
            self._refuse(f"partial_rotary_factor {partial}", "1.0")

    def _check_heads(self) -> None:
        num_heads = self._int("num_attention_heads")
        num_kv_heads = self._int("num_key_value_heads", num_heads)
        if num_heads % num_kv_heads:
            raise CheckpointError(
                f"{self._path}: num_attention_heads ({num_heads}) is no multiple of "
                f"num_key_value_heads ({num_kv_heads})"
            )

    def _sliding_window(self, num_layers: int) -> tuple[int | None, tuple[int, ...] | None]:
        """The window, and the layers that use it (None: all)."""
        window = self._values.get("sliding_window")
        if self._family.windows:
            return window, None
        if not self._family.windows_by_layer or not self._values.get("use_sliding_window"):
            return None, None
        types = self._values.get("layer_types")
        if types is not None:
            if len(types) != num_layers:
                raise CheckpointError(
                    f"{self._path}: layer_types has {len(types)} entries for {num_layers} layers"
                )
            layers = tuple(i for i in range(num_layers) if types[i] == _WINDOWED)
        else:
            layers = tuple(range(self._int("max_window_layers", minimum=0), num_layers))
        return (window, layers) if layers and window is not None else (None, None)

    def _rope_parameters(self) -> Mapping[str, Any]:
        """transformers 5 says rope_parameters; before, rope_scaling stood beside rope_theta."""
        parameters = self._values.get("rope_parameters") or self._values.get("rope_scaling") or {}
        if any(isinstance(value, Mapping) for value in parameters.values()):
            self._refuse("rope_parameters that differ between layers", "one set for all layers")
        return parameters

    def _rope_value(self, key: str, default: Any) -> Any:
        """From the parameters, or from the top level where older files keep some of them."""
        value = self._rope_parameters().get(key)
        value = self._values.get(key) if value is None else value
        return default if value is None else value

    def _rope_theta(self) -> float:
        return float(self._rope_value("rope_theta", 10000.0))

    def _rope_scaling(self) -> RopeScaling:
        parameters = self._rope_parameters()
        rope_type = parameters.get("rope_type") or parameters.get("type") or "default"
        if rope_type not in _ROPE_KINDS:
            self._refuse(f"rope type {rope_type}", ", ".join(_ROPE_KINDS))
        if rope_type == "default":
            return RopeScaling()
        original = self._rope_value(
            "original_max_position_embeddings", self._int("max_position_embeddings")
        )
        factor = parameters.get("factor")
        if factor is None:
            factor = self._int("max_position_embeddings") / original
        return RopeScaling(
            kind=_ROPE_KINDS[rope_type],
            factor=float(factor),
            original_max_position_embeddings=int(original),
            **{
                name: parameters[name]
                for name in _ROPE_SETTINGS
                if parameters.get(name) is not None
            },
        )

    def _int(self, key: str, default: int | None = None, minimum: int = 1) -> int:
        value = self._values.get(key)
        value = default if value is None else value
        if not isinstance(value, int) or value < minimum:
            raise CheckpointError(
                f"{self._path}: {key} is {value!r}, expected a whole number from {minimum}"
            )
        return value

    def _refuse(self, what: str, supported: str) -> NoReturn:
        raise UnsupportedModelError(
            f"{self._path}: {what} is not supported; supported: {supported}"
        )


def _family_of(path: str, config: Mapping[str, Any]) -> _Family:
    names = config.get("architectures") or [
        name for name, family in _FAMILIES.items() if family.model_type == config.get("model_type")
    ]
    name = names[0] if names else f"of model_type {config.get('model_type')}"
    if name not in _FAMILIES:
        raise UnsupportedModelError(
            f"{path}: architecture {name} is not supported; "
            f"supported: {', '.join(SUPPORTED_ARCHITECTURES)}"
        )
    return _FAMILIES[name]
