"""GGUF files: what is read from them, and how bad ones are refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.tokenizer import (
    Tokenizer,
    TokenizerError,
    UnsupportedTokenizerError,
    load_tokenizer,
)
from modelfiles.gguf_file import GgufFile
from tests.gateway.text.vocabularies import (
    KEYS,
    byte_level_metadata,
    spm_metadata,
    write_gguf,
)


@pytest.fixture(scope="module")
def smollm2_metadata(smollm2_path: Path) -> dict[str, Any]:
    return byte_level_metadata(smollm2_path, "smollm")


def test_smollm2_says_what_it_is(smollm2: Tokenizer) -> None:
    assert smollm2.vocab_size == 49152
    assert smollm2.max_context_tokens == 8192
    assert smollm2.bos_token_id == 1
    # The file names only <|im_end|>; <|endoftext|> ends a text as well.
    assert smollm2.eos_token_ids == {0, 2}
    assert smollm2.special_token_ids == frozenset(range(17))
    assert smollm2.token_bytes(2) == b"<|im_end|>"


def test_the_start_token_is_added_only_where_asked_for(
    tokenizer_of: Callable[[str], Tokenizer],
) -> None:
    spm = tokenizer_of("spm")

    assert spm.encode("hi")[0] == spm.bos_token_id
    assert spm.encode("hi", add_special_tokens=False) == spm.encode("hi")[1:]


def test_a_file_may_switch_the_start_token_off_and_the_end_token_on(
    smollm2_path: Path, tmp_path: Path
) -> None:
    metadata = spm_metadata(smollm2_path) | {KEYS.ADD_BOS: False, KEYS.ADD_EOS: True}
    tokenizer = load_tokenizer(write_gguf(tmp_path / "m.gguf", metadata))

    ids = tokenizer.encode("hi")

    assert ids[0] != 1
    assert ids[-1] == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({KEYS.MODEL: "bert"}, "'bert' is not supported; supported: gpt2, llama"),
        pytest.param({KEYS.PRE: "martian"}, "'martian' is not supported; supported: default, gpt"),
        pytest.param({KEYS.TOKEN_TYPE: [1]}, "49152 tokens but 1 token types"),
        pytest.param({KEYS.MERGES: ["a nothing"]}, "the merges do not fit the vocabulary"),
        pytest.param({KEYS.CHAT_TEMPLATE: "{% if %}"}, "the chat template is not valid"),
        pytest.param({KEYS.EOS_ID: 99_999}, "special token 99999 is not among 49152 tokens"),
    ],
    ids=["model", "pre-tokenizer", "types", "merges", "template", "eos"],
)
def test_a_bad_tokenizer_is_refused_by_file_and_cause(
    smollm2_path: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    kept = {k: v for k, v in GgufFile(str(smollm2_path)).metadata.items() if "tokenizer" in k}
    path = write_gguf(tmp_path / "bad.gguf", kept | change)

    with pytest.raises(TokenizerError, match=r"bad\.gguf") as refusal:
        load_tokenizer(path)

    assert message in str(refusal.value)


@pytest.mark.parametrize("key", [KEYS.MODEL, KEYS.LIST, KEYS.MERGES])
def test_a_missing_key_is_named(smollm2_path: Path, tmp_path: Path, key: str) -> None:
    kept = {k: v for k, v in GgufFile(str(smollm2_path)).metadata.items() if "tokenizer" in k}
    del kept[key]

    with pytest.raises(TokenizerError, match=rf"bad\.gguf: the key '{key}' is missing"):
        load_tokenizer(write_gguf(tmp_path / "bad.gguf", kept))


def test_a_truncated_file_is_refused(smollm2_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(smollm2_path.read_bytes()[:1000])

    with pytest.raises(TokenizerError, match=r"cut\.gguf is not a usable GGUF file: it ends"):
        load_tokenizer(path)


def test_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"PK\x03\x04" * 100)

    with pytest.raises(TokenizerError, match="does not begin with the letters GGUF"):
        load_tokenizer(tmp_path / "model.gguf")
    with pytest.raises(UnsupportedTokenizerError, match=r"neither a \.gguf file nor a folder"):
        load_tokenizer(tmp_path / "model.bin")
