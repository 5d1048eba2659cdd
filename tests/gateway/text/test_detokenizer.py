"""Text that grows token by token equals the text of all tokens, and is always whole characters."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.detokenizer import Detokenizer
from gateway.tokenizer import Tokenizer, load_tokenizer
from tests.gateway.text.corpus import CORPUS
from tests.gateway.text.folders import ENGINES, write_folder

KINDS = ["smollm", "spm", *(f"folder {kind}" for kind in ENGINES)]


@pytest.fixture(scope="module")
def tokenizers(
    smollm2_path: Path,
    tokenizer_of: Callable[[str], Tokenizer],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Tokenizer]:
    root = tmp_path_factory.mktemp("folders")
    folders = {
        f"folder {kind}": load_tokenizer(write_folder(root / kind, build(smollm2_path)))
        for kind, build in ENGINES.items()
    }
    return {"smollm": tokenizer_of("smollm"), "spm": tokenizer_of("spm"), **folders}


def _pieces(tokenizer: Tokenizer, token_ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    return [*map(detokenizer.push, token_ids), detokenizer.finish()]


# The ids below 300 hold the control and byte tokens of every vocabulary here.
TOKEN_IDS = st.lists(st.one_of(st.integers(0, 300), st.integers(0, 60_000)), max_size=40)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=200, deadline=None)
@given(token_ids=TOKEN_IDS)
def test_pieces_joined_equal_the_whole(
    kind: str, tokenizers: dict[str, Tokenizer], token_ids: list[int]
) -> None:
    pieces = _pieces(tokenizers[kind], token_ids)

    assert "".join(pieces) == tokenizers[kind].decode(token_ids, continuation=True)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=30))
def test_no_piece_ends_within_a_character(
    kind: str, tokenizers: dict[str, Tokenizer], text: str
) -> None:
    tokenizer = tokenizers[kind]
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    # What the tokenizer cannot write at all is not the detokenizer's fault.
    if "\ufffd" in tokenizer.decode(token_ids):
        return

    assert not any("\ufffd" in piece for piece in _pieces(tokenizer, token_ids))


@pytest.mark.parametrize("kind", KINDS)
def test_the_corpus_comes_back_token_by_token(kind: str, tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers[kind]

    for text in CORPUS:
        token_ids = tokenizer.encode(text, add_special_tokens=False)
        assert "".join(_pieces(tokenizer, token_ids)) == tokenizer.decode(
            token_ids, continuation=True
        )


def test_a_character_of_several_tokens_appears_with_its_last(smollm2: Tokenizer) -> None:
    token_ids = smollm2.encode("\U0001f9ff")
    assert len(token_ids) > 1

    assert _pieces(smollm2, token_ids) == [*[""] * (len(token_ids) - 1), "\U0001f9ff", ""]


def test_a_character_that_is_cut_off_shows_at_the_end(smollm2: Tokenizer) -> None:
    token_ids = smollm2.encode("a\U0001f9ff")[:-1]

    assert "".join(_pieces(smollm2, token_ids)) == "a\ufffd"


def test_a_broken_character_shows_as_soon_as_it_cannot_be_mended(smollm2: Tokenizer) -> None:
    first_byte, letter = smollm2.encode("\U0001f9ff")[0], smollm2.encode("b")[0]

    assert _pieces(smollm2, [first_byte, letter]) == ["", "\ufffdb", ""]


def test_control_tokens_add_nothing(smollm2: Tokenizer) -> None:
    assert _pieces(smollm2, [*smollm2.encode("a<|im_end|>b"), 0]) == ["a", "", "b", "", ""]


@pytest.mark.parametrize("kind", ["spm", "folder spm", "folder metaspace"])
def test_a_leading_space_is_text_in_a_continuation_only(
    kind: str, tokenizers: dict[str, Tokenizer]
) -> None:
    tokenizer = tokenizers[kind]
    token_ids = tokenizer.encode("Hello", add_special_tokens=False)

    assert tokenizer.decode(token_ids) == "Hello"
    assert tokenizer.decode(token_ids, continuation=True) == " Hello"
    assert "".join(_pieces(tokenizer, token_ids)) == " Hello"
