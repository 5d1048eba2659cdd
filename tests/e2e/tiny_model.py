"""A model of a few kilobytes: what counts in these tests is who serves it, not what it says."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig

from tests.engine.models.tiny_checkpoint import Case, write_checkpoint

END, END_ID = "</s>", 256
CASE = Case(
    "tiny",
    LlamaConfig,
    {
        "num_hidden_layers": 2,
        "vocab_size": 264,
        "max_position_embeddings": 32_768,
        # Only the tokenizer's files name the end of a text.
        "eos_token_id": None,
    },
)


# Tokens of a pool, and what a worker must be told to have it.
POOL_TOKENS = 65_536
POOL = ("--kv-memory-bytes", str(2 * 2 * 2 * 16 * 4 * POOL_TOKENS))


def write_tiny_model(folder: Path, *, seed: int = 0, end: str = END) -> str:
    """A Hugging Face folder whose tokens are bytes; returns its path, which names the model.

    Another ``seed`` gives other weights and another ``end`` another vocabulary, nothing else.
    """
    write_checkpoint(CASE, folder, seed)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: number for number, piece in enumerate([*alphabet, end])}
    engine = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    engine.decoder = decoders.ByteLevel()
    engine.add_special_tokens([end])
    engine.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return str(folder)


def tiny_prompt(num_tokens: int, seed: int) -> list[int]:
    """Tokens that no other seed begins with."""
    text = f"{seed:08}".encode() * num_tokens
    return [each % 256 for each in text[:num_tokens]]
