"""Tokenizers of Hugging Face folders."""

import json
from pathlib import Path
from typing import Any

import tokenizers

from gateway.chat_template import ChatTemplate, ChatTemplateError
from gateway.tokenizer.errors import TokenizerError, UnsupportedTokenizerError
from gateway.tokenizer.tokenizer import SpecialTokens, Tokenizer
from gateway.tokenizer.vocabulary import (
    SPM_SPACE,
    Vocabulary,
    byte_level_bytes,
    byte_token_value,
    spm_bytes,
)


def load_folder_tokenizer(folder: Path) -> Tokenizer:
    """Reads tokenizer.json, tokenizer_config.json, special_tokens_map.json, generation_config.json,
    config.json and the chat template of a folder.

    Raises TokenizerError, naming the file.
    """
    path = folder / "tokenizer.json"
    text = _read_text(path)
    try:
        engine = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the binding raises nothing more precise
        raise TokenizerError(f"{path}: {error}") from error
    # What a file may ask for to train with would cut or pad prompts here.
    engine.no_truncation()
    engine.no_padding()
    model = _read_json(folder / "config.json")
    config = _read_json(folder / "special_tokens_map.json", required=False)
    config |= _read_json(folder / "tokenizer_config.json", required=False)
    vocabulary = _read_vocabulary(path, json.loads(text), engine, model)
    bos_token, eos_token = (_token_text(config.get(key)) for key in ("bos_token", "eos_token"))
    ends = _end_ids(folder, model) | {engine.token_to_id(eos_token)} - {None}
    if "max_position_embeddings" not in model:
        raise TokenizerError(f"{folder / 'config.json'}: max_position_embeddings is missing")
    return Tokenizer(
        engine,
        vocabulary,
        SpecialTokens(engine.token_to_id(bos_token), frozenset(ends)),
        _read_chat_template(folder, config, bos_token, eos_token),
        model["max_position_embeddings"],
    )


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerError(f"{path}: {error}") from error


def _read_json(path: Path, *, required: bool = True) -> dict[str, Any]:
    if not required and not path.exists():
        return {}
    try:
        content = json.loads(_read_text(path))
    except json.JSONDecodeError as error:
        raise TokenizerError(f"{path}: {error}") from error
    if not isinstance(content, dict):
        raise TokenizerError(f"{path}: not a JSON object")
    return content


def _read_vocabulary(
    path: Path, content: dict[str, Any], engine: tokenizers.Tokenizer, model: dict[str, Any]
) -> Vocabulary:
    decoders = _flatten(content.get("decoder"), "decoders")
    kinds = {decoder["type"] for decoder in decoders}
    if "ByteLevel" in kinds:
        decode_piece = byte_level_bytes
    elif "ByteFallback" in kinds:
        decode_piece = _spm_piece_bytes
    else:
        raise UnsupportedTokenizerError(
            f"{path}: decoder {', '.join(sorted(kinds)) or 'none'} is not supported; "
            "supported: ByteLevel, ByteFallback"
        )
    added = engine.get_added_tokens_decoder()
    pieces = {i: piece for piece, i in engine.get_vocab(with_added_tokens=True).items()}
    text_bytes = [b""] * (max(pieces, default=-1) + 1)
    for i, piece in pieces.items():
        text_bytes[i] = piece.encode() if i in added else decode_piece(piece)
    return Vocabulary(
        tuple(text_bytes),
        frozenset(i for i, token in added.items() if token.special),
        model.get("vocab_size", len(text_bytes)),
        any(map(_strips_leading_space, decoders)),
    )


def _flatten(component: dict[str, Any] | None, children: str) -> list[dict[str, Any]]:
    if component is None:
        return []
    if component["type"] == "Sequence":
        return [part for child in component[children] for part in _flatten(child, children)]
    return [component]


def _spm_piece_bytes(piece: str) -> bytes:
    byte = byte_token_value(piece)
    return spm_bytes(piece) if byte is None else byte


def _strips_leading_space(decoder: dict[str, Any]) -> bool:
    return bool(
        decoder["type"] == "Strip"
        and decoder["content"] in (" ", SPM_SPACE)
        and decoder["start"] > 0
    )


def _end_ids(folder: Path, model: dict[str, Any]) -> set[int]:
    """generation_config.json decides where it says something, else config.json."""
    path = folder / "generation_config.json"
    generation = _read_json(path, required=False)
    if (value := generation.get("eos_token_id")) is None:
        path, value = folder / "config.json", model.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(token_id, int) and token_id >= 0 for token_id in ids):
        raise TokenizerError(f"{path}: eos_token_id is {value!r}, expected token ids")
    return set(ids)


def _token_text(token: str | dict[str, Any] | None) -> str:
    """A token in tokenizer_config.json is its text, or an object with it."""
    if isinstance(token, dict):
        return str(token["content"])
    return token or ""


def _read_chat_template(
    folder: Path, config: dict[str, Any], bos_token: str, eos_token: str
) -> ChatTemplate | None:
    path = folder / "chat_template.jinja"
    source = _read_text(path) if path.exists() else config.get("chat_template")
    if isinstance(source, list):
        named = {entry["name"]: entry["template"] for entry in source}
        source = named.get("default")
    if source is None:
        return None
    try:
        return ChatTemplate(source, bos_token, eos_token)
    except ChatTemplateError as error:
        raise TokenizerError(f"{folder}: {error}") from error
