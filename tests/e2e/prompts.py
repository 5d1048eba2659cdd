"""Prompts as token ids."""

import random


def prompt(num_tokens: int, seed: int) -> list[int]:
    """Tokens that no other seed shares a block with."""
    return random.Random(seed).choices(range(1_000, 40_000), k=num_tokens)
