"""A model of some hundred kilobytes, for when it counts who serves it and not what it says."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

END, END_ID = "</s>", 256
NUM_LAYERS, HIDDEN, MLP, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 2, 64, 96, 4, 2, 16
VOCABULARY = 264
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "intermediate_size": MLP,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": NUM_HEADS,
    "num_key_value_heads": NUM_KV_HEADS,
    "head_dim": HEAD_DIM,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    # Only the tokenizer's files name the end of a text.
    "eos_token_id": None,
}
# Drawn, because zero biases, unit norms and small weights would hide mistakes.
STD = 0.2

TOKEN_BYTES = NUM_LAYERS * NUM_KV_HEADS * 2 * HEAD_DIM * 4
"""Of the KV of one token in float32."""


def pool_of(num_tokens: int) -> tuple[str, str]:
    """What a worker in float32 must be told to have a pool of so many tokens."""
    return "--kv-memory-bytes", str(num_tokens * TOKEN_BYTES)


# More than most tests fill.
POOL_TOKENS = 65_536
POOL = pool_of(POOL_TOKENS)


def write_tiny_model(folder: Path, *, seed: int = 0, end: str = END) -> str:
    """A Hugging Face folder whose tokens are bytes; returns its path, which names the model.

    Another ``seed`` gives other weights and another ``end`` another vocabulary, nothing else.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    generator = torch.Generator().manual_seed(seed)
    weights = {
        name: torch.randn(shape, generator=generator) * STD + ("norm" in name)
        for name, shape in _shapes()
    }
    save_file(weights, folder / "model.safetensors")
    write_byte_tokenizer(folder, end)
    return str(folder)


def tiny_prompt(num_tokens: int, seed: int) -> list[int]:
    """Tokens that no other seed begins with."""
    text = f"{seed:08}".encode() * num_tokens
    return [each % 256 for each in text[:num_tokens]]


def _shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "model.embed_tokens.weight", (VOCABULARY, HIDDEN)
    for layer in range(NUM_LAYERS):
        prefix = f"model.layers.{layer}"
        yield f"{prefix}.input_layernorm.weight", (HIDDEN,)
        yield f"{prefix}.self_attn.q_proj.weight", (NUM_HEADS * HEAD_DIM, HIDDEN)
        yield f"{prefix}.self_attn.k_proj.weight", (NUM_KV_HEADS * HEAD_DIM, HIDDEN)
        yield f"{prefix}.self_attn.v_proj.weight", (NUM_KV_HEADS * HEAD_DIM, HIDDEN)
        yield f"{prefix}.self_attn.o_proj.weight", (HIDDEN, NUM_HEADS * HEAD_DIM)
        yield f"{prefix}.post_attention_layernorm.weight", (HIDDEN,)
        yield f"{prefix}.mlp.gate_proj.weight", (MLP, HIDDEN)
        yield f"{prefix}.mlp.up_proj.weight", (MLP, HIDDEN)
        yield f"{prefix}.mlp.down_proj.weight", (HIDDEN, MLP)
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (VOCABULARY, HIDDEN)


def write_byte_tokenizer(folder: Path, end: str = END) -> None:
    """Whose tokens are bytes; ``end`` is END_ID."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: number for number, piece in enumerate([*alphabet, end])}
    engine = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    engine.decoder = decoders.ByteLevel()
    engine.add_special_tokens([end])
    engine.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
