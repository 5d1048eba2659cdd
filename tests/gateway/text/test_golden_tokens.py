"""Token ids are llama.cpp's, on a corpus whose ids were written down."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.tokenizer import Tokenizer
from tests.gateway.text.corpus import CORPUS

GOLDEN = json.loads(Path(__file__).with_name("golden_tokens.json").read_text())["token_ids"]


@pytest.mark.parametrize("kind", GOLDEN)
def test_token_ids_are_those_of_llama_cpp(
    kind: str, tokenizer_of: Callable[[str], Tokenizer]
) -> None:
    tokenizer = tokenizer_of(kind)

    assert [tokenizer.encode(text) for text in CORPUS] == GOLDEN[kind]


@pytest.mark.parametrize("kind", GOLDEN)
def test_decoding_gives_the_text_back(kind: str, tokenizer_of: Callable[[str], Tokenizer]) -> None:
    tokenizer = tokenizer_of(kind)
    # A space in front of what follows a control token is SentencePiece's own, and U+2581 is how
    # it writes a space: such text does not come back, in llama.cpp neither.
    plain = [text for text in CORPUS if "<" not in text and "\u2581" not in text]

    decoded = [tokenizer.decode(tokenizer.encode(text)) for text in plain]

    assert decoded == plain


def test_the_golden_kinds_cut_words_differently() -> None:
    rows = [json.dumps(ids) for kind, ids in GOLDEN.items()]

    assert len(set(rows)) == len(rows)
