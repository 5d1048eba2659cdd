"""A model of a few kilobytes: what counts in these tests is who serves it, not what it says."""

from pathlib import Path

from transformers import LlamaConfig

from bench.tiny_model import END, write_byte_tokenizer
from tests.engine.models.tiny_checkpoint import Case, write_checkpoint

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


# Bytes of KV of a block of 16 tokens: layers, K and V, heads, their size, float32.
BLOCK_BYTES = 16 * 2 * 2 * 2 * 16 * 4
# Tokens of a pool, and what a worker must be told to have it.
POOL_TOKENS = 65_536
POOL = ("--kv-memory-bytes", str(BLOCK_BYTES * POOL_TOKENS // 16))


def write_tiny_model(folder: Path, *, seed: int = 0, end: str = END) -> str:
    """A Hugging Face folder whose tokens are bytes; returns its path, which names the model.

    Another ``seed`` gives other weights and another ``end`` another vocabulary, nothing else.
    """
    write_checkpoint(CASE, folder, seed)
    write_byte_tokenizer(folder, end)
    return str(folder)
