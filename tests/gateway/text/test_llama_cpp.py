"""Token ids and text are llama.cpp's, on whatever text hypothesis thinks of."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.tokenizer import Tokenizer, load_tokenizer
from gateway.tokenizer.pre_tokenizer import PRE_TOKENIZER_TYPES
from tests.gateway.text.corpus import CORPUS
from tests.gateway.text.vocabularies import write_vocabulary

llama_cpp = pytest.importorskip("llama_cpp", reason="the bench extra is not installed")

GOLDEN = Path(__file__).with_name("golden_tokens.json")
DISTINCT_KINDS = json.loads(GOLDEN.read_text())["token_ids"]
WORDS = st.sampled_from(
    ["the", " and", "don't", "I'LL", "  ", "\n\n", "\r\n", "123", "4567", "\u0663", "==", "aaab",
     "<|im_end|>", "</s>", "[INST]", "<tool>", "\U0001f468\u200d\U0001f469", "\u4f60\u597d"]
)  # fmt: skip
TEXT = st.lists(st.one_of(WORDS, st.text(max_size=8)), max_size=12).map("".join)


@pytest.fixture(scope="module")
def rival_of(vocabulary_path: Callable[[str], Path]) -> Callable[[str], Any]:
    return cache(
        lambda kind: llama_cpp.Llama(str(vocabulary_path(kind)), vocab_only=True, verbose=False)
    )


@pytest.mark.parametrize("kind", DISTINCT_KINDS)
@settings(max_examples=100, deadline=None)
@given(text=TEXT.filter(bool), add_special_tokens=st.booleans())
def test_encoding_equals_llama_cpp(
    kind: str,
    tokenizer_of: Callable[[str], Tokenizer],
    rival_of: Callable[[str], Any],
    text: str,
    add_special_tokens: bool,
) -> None:
    theirs = rival_of(kind).tokenize(text.encode(), add_bos=add_special_tokens, special=True)

    assert tokenizer_of(kind).encode(text, add_special_tokens) == theirs


@pytest.mark.parametrize("kind", ["spm", "smollm"])
@settings(max_examples=100, deadline=None)
@given(token_ids=st.lists(st.integers(0, 8000), max_size=30))
def test_decoding_equals_llama_cpp(
    kind: str,
    tokenizer_of: Callable[[str], Tokenizer],
    rival_of: Callable[[str], Any],
    token_ids: list[int],
) -> None:
    tokenizer = tokenizer_of(kind)
    theirs = rival_of(kind).detokenize(token_ids, special=True)

    assert b"".join(map(tokenizer.token_bytes, token_ids)) == theirs


@pytest.mark.parametrize("name", PRE_TOKENIZER_TYPES)
def test_every_name_in_the_table_means_what_llama_cpp_means(
    name: str, smollm2_path: Path, tmp_path: Path
) -> None:
    path = write_vocabulary(tmp_path, smollm2_path, name)
    rival = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    tokenizer = load_tokenizer(path)

    for text in CORPUS:
        assert tokenizer.encode(text) == rival.tokenize(text.encode(), special=True)
