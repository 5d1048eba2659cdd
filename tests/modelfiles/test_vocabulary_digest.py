"""Vocabularies are told apart by what each token id stands for."""

import json
from collections.abc import Sequence
from pathlib import Path

import gguf
import pytest
import tokenizers
from tokenizers import models

from modelfiles.errors import ModelFileError
from modelfiles.vocabulary_digest import vocabulary_digest

PIECES = ("a", "b", "ab", "\u2581ü", "<|end|>")


def write_gguf(path: Path, pieces: Sequence[str]) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    if pieces:
        writer.add_token_list(pieces)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def write_folder(folder: Path, model: models.Model, added: Sequence[str]) -> Path:
    """A folder whose tokenizer.json the library writes itself."""
    folder.mkdir(exist_ok=True)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.add_special_tokens(list(added))
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def byte_pairs(pieces: Sequence[str]) -> models.BPE:
    return models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[("a", "b")])


def test_the_format_of_the_file_does_not_count(tmp_path: Path) -> None:
    expected = vocabulary_digest(write_gguf(tmp_path / "m.gguf", PIECES))
    assert len(expected) == 32
    byte_pair = write_folder(tmp_path / "bpe", byte_pairs(PIECES[:4]), PIECES[4:])
    assert vocabulary_digest(byte_pair) == expected
    unigram = models.Unigram([(piece, -1.0) for piece in PIECES[:4]], unk_id=0)
    assert vocabulary_digest(write_folder(tmp_path / "unigram", unigram, PIECES[4:])) == expected


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param((*PIECES, "c"), id="more"),
        pytest.param(PIECES[:-1], id="fewer"),
        pytest.param((*PIECES[:-1], "<|eot|>"), id="another text"),
        pytest.param((*PIECES[:3], PIECES[4], PIECES[3]), id="another order"),
        pytest.param(("ab", "", *PIECES[2:]), id="another border"),
    ],
)
def test_any_difference_counts(pieces: Sequence[str], tmp_path: Path) -> None:
    expected = vocabulary_digest(write_gguf(tmp_path / "m.gguf", PIECES))
    assert vocabulary_digest(write_gguf(tmp_path / "other.gguf", pieces)) != expected


def test_added_tokens_count(tmp_path: Path) -> None:
    one = write_folder(tmp_path / "one", byte_pairs(PIECES), ["<|a|>"])
    other = write_folder(tmp_path / "other", byte_pairs(PIECES), ["<|b|>"])
    assert vocabulary_digest(one) != vocabulary_digest(other)


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"model": {"vocab": {"a": "x"}}, "added_tokens": []},
        {"model": {"vocab": {"a": -1}}, "added_tokens": []},
        {"model": {"vocab": 3}, "added_tokens": []},
        {"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 1}]},
    ],
)
def test_a_folder_without_a_vocabulary_is_named(content: object, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ModelFileError, match=r"tokenizer\.json has no vocabulary"):
        vocabulary_digest(tmp_path)


def test_a_gguf_without_a_vocabulary_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"m\.gguf has no vocabulary"):
        vocabulary_digest(write_gguf(tmp_path / "m.gguf", ()))
