"""Writes a tiny transformers model as the GGUF converters would."""

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import PretrainedConfig, PreTrainedModel

_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf_model(
    model: PreTrainedModel, path: Path, quantize: Callable[[str], str] = lambda name: "F32"
) -> Path:
    """``quantize`` gives the ggml type of each tensor by its GGUF name."""
    architecture = {"mistral": "llama"}.get(model.config.model_type, model.config.model_type)
    writer = gguf.GGUFWriter(path, architecture)
    _add_metadata(writer, model.config)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        if architecture == "llama":
            tensor = _interleave(name, tensor, model.config)
        _add(writer, _gguf_name(name), tensor.numpy(), quantize)
    if model.config.rope_parameters["rope_type"] == "llama3":
        inverse = model.model.rotary_emb.inv_freq
        dim = 2 * len(inverse)
        plain = model.config.rope_parameters["rope_theta"] ** (-torch.arange(0, dim, 2) / dim)
        _add(writer, "rope_freqs.weight", (plain / inverse).float().numpy(), lambda name: "F32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(
    writer: gguf.GGUFWriter, name: str, values: np.ndarray, quantize: Callable[[str], str]
) -> None:
    kind = gguf.GGMLQuantizationType[quantize(name) if values.ndim == 2 else "F32"]
    writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)


def _add_metadata(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    rope = config.rope_parameters
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(rope["rope_theta"])
    head_dim = getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_eos_token_id(config.eos_token_id)
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if getattr(config, "sliding_window", None) is not None:
        writer.add_sliding_window(config.sliding_window)


def _interleave(name: str, tensor: torch.Tensor, config: PretrainedConfig) -> torch.Tensor:
    """Llama's converter puts the two rotary halves of each q and k head side by side."""
    heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
    if "q_proj" not in name and "k_proj" not in name:
        return tensor
    halves = tensor.view(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
    return halves.swapaxes(1, 2).reshape(tensor.shape).contiguous()


def _gguf_name(name: str) -> str:
    module, _, suffix = name.rpartition(".")
    if not module.startswith("model.layers."):
        return f"{_GGUF_NAMES[module]}.{suffix}"
    _, _, layer, part = module.split(".", 3)
    return f"blk.{layer}.{_GGUF_NAMES[part]}.{suffix}"
