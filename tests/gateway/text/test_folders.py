"""Hugging Face folders: token ids, text and settings are those of transformers."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models
from transformers import PreTrainedTokenizerFast

from gateway.tokenizer import (
    Tokenizer,
    TokenizerError,
    UnsupportedTokenizerError,
    load_tokenizer,
)
from tests.gateway.text.corpus import CORPUS
from tests.gateway.text.folders import ENGINES, byte_level_engine, write_folder


@pytest.fixture(scope="module")
def folder_of(
    smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("folders")
    return cache(lambda kind: write_folder(root / kind, ENGINES[kind](smollm2_path)))


@pytest.fixture(scope="module")
def tokenizer_of(folder_of: Callable[[str], Path]) -> Callable[[str], Tokenizer]:
    return cache(lambda kind: load_tokenizer(folder_of(kind)))


@pytest.fixture(scope="module")
def rival_of(folder_of: Callable[[str], Path]) -> Callable[[str], PreTrainedTokenizerFast]:
    return cache(lambda kind: PreTrainedTokenizerFast.from_pretrained(folder_of(kind)))


@pytest.mark.parametrize("kind", ENGINES)
def test_the_corpus_is_encoded_and_decoded_as_transformers_does(
    kind: str,
    tokenizer_of: Callable[[str], Tokenizer],
    rival_of: Callable[[str], PreTrainedTokenizerFast],
) -> None:
    ours, theirs = tokenizer_of(kind), rival_of(kind)

    for text in CORPUS:
        ids = ours.encode(text)
        assert ids == theirs.encode(text)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
        assert ours.decode(ids, skip_special_tokens=False) == theirs.decode(ids)


@pytest.mark.parametrize("kind", ENGINES)
@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=60))
def test_any_text_is_encoded_and_decoded_as_transformers_does(
    kind: str,
    tokenizer_of: Callable[[str], Tokenizer],
    rival_of: Callable[[str], PreTrainedTokenizerFast],
    text: str,
) -> None:
    ours, theirs = tokenizer_of(kind), rival_of(kind)
    ids = ours.encode(text, add_special_tokens=False)

    assert ids == theirs.encode(text, add_special_tokens=False)
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert ours.decode(ids, skip_special_tokens=False) == theirs.decode(ids)


def test_settings_come_from_their_files(smollm2_path: Path, tmp_path: Path) -> None:
    engine = byte_level_engine(smollm2_path)
    config = {"max_position_embeddings": 4096, "vocab_size": 49160}
    ends = {"eos_token_id": [0, 2]}
    folder = write_folder(tmp_path, engine, config=config, generation_config=ends)

    tokenizer = load_tokenizer(folder)

    assert tokenizer.max_context_tokens == 4096
    assert tokenizer.vocab_size == 49160
    assert tokenizer.bos_token_id == engine.token_to_id("<s>")
    assert tokenizer.eos_token_ids == {0, 2, engine.token_to_id("</s>")}
    assert engine.token_to_id("<think>") not in tokenizer.special_token_ids


@pytest.mark.parametrize(
    ("config_ids", "generation_ids", "expected"),
    [
        (2, None, {2}),
        ([2, 3], None, {2, 3}),
        (2, [5, 6], {5, 6}),
        (2, 4, {4}),
        (None, None, set()),
        (0, None, {0}),
        # Never drawn, because the model has no such token.
        ([2, 49152], None, {2}),
    ],
)
def test_generation_config_decides_the_end_where_it_says_something(
    smollm2_path: Path,
    tmp_path: Path,
    config_ids: object,
    generation_ids: object,
    expected: set[int],
) -> None:
    folder = write_folder(
        tmp_path,
        byte_level_engine(smollm2_path),
        config={"max_position_embeddings": 1, "vocab_size": 49152, "eos_token_id": config_ids},
        generation_config={"eos_token_id": generation_ids},
        tokenizer_config=None,
    )
    assert load_tokenizer(folder).eos_token_ids == expected


def test_an_end_that_is_no_token_id_is_named(smollm2_path: Path, tmp_path: Path) -> None:
    generation = {"eos_token_id": ["</s>"]}
    folder = write_folder(tmp_path, byte_level_engine(smollm2_path), generation_config=generation)
    with pytest.raises(TokenizerError, match=r"generation_config\.json: eos_token_id is .*</s>"):
        load_tokenizer(folder)


def test_ids_past_the_tokenizer_decode_to_nothing(smollm2_path: Path, tmp_path: Path) -> None:
    config = {"max_position_embeddings": 1, "vocab_size": 60_000}
    tokenizer = load_tokenizer(
        write_folder(tmp_path, byte_level_engine(smollm2_path), config=config)
    )

    assert tokenizer.vocab_size == 60_000
    assert tokenizer.decode([59_999]) == ""


TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}{{ eos_token }}"


@pytest.mark.parametrize(
    ("config_template", "file_template", "expected"),
    [
        pytest.param(TEMPLATE, None, TEMPLATE, id="config"),
        pytest.param(TEMPLATE, "from the file", "from the file", id="the file comes first"),
        pytest.param(
            [{"name": "tool_use", "template": "x"}, {"name": "default", "template": TEMPLATE}],
            None,
            TEMPLATE,
            id="list",
        ),
        pytest.param([{"name": "tool_use", "template": "x"}], None, None, id="no default in list"),
        pytest.param(None, None, None, id="none"),
    ],
)
def test_the_chat_template_is_found(
    smollm2_path: Path,
    tmp_path: Path,
    config_template: Any,
    file_template: str | None,
    expected: str | None,
) -> None:
    config = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": config_template}
    folder = write_folder(tmp_path, byte_level_engine(smollm2_path), tokenizer_config=config)
    if file_template is not None:
        (folder / "chat_template.jinja").write_text(file_template)

    template = load_tokenizer(folder).chat_template

    assert (template and template.source) == expected


def _break_json(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{")


def _drop_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def _drop_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def _drop_context(folder: Path) -> None:
    (folder / "config.json").write_text("{}")


def _list_for_object(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text("[]")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_break_json, r"tokenizer\.json: "),
        (_drop_tokenizer, r"tokenizer\.json: .*No such file"),
        (_drop_config, r"config\.json: .*No such file"),
        (_drop_context, r"config\.json: max_position_embeddings is missing"),
        (_list_for_object, r"tokenizer_config\.json: not a JSON object"),
    ],
)
def test_a_damaged_folder_is_refused_by_file(
    smollm2_path: Path, tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    folder = write_folder(tmp_path, byte_level_engine(smollm2_path))
    damage(folder)

    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(folder)


def test_another_kind_of_tokenizer_is_refused_with_the_list(tmp_path: Path) -> None:
    engine = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    engine.decoder = decoders.WordPiece()

    with pytest.raises(UnsupportedTokenizerError, match="WordPiece is not supported; supported: "):
        load_tokenizer(write_folder(tmp_path, engine))
