"""The one call into the Rust library that turns text into token ids."""

import os

import tokenizers

# The library would else start threads of its own beside those that call it.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def encode_text(engine: tokenizers.Tokenizer, text: str, add_special_tokens: bool) -> list[int]:
    """Token ids of one text. The call for batches, unlike that for one text, lets other threads
    run meanwhile."""
    (encoding,) = engine.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    ids: list[int] = encoding.ids
    return ids
