"""What tells two vocabularies apart, whatever the format of their files."""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gguf.constants import Keys

from modelfiles.errors import ModelFileError
from modelfiles.gguf_file import GgufFile
from modelfiles.model_folder import read_json


def vocabulary_digest(path: Path) -> bytes:
    """SHA-256 (32 bytes) over the text of every token id of a GGUF file or Hugging Face folder.

    Equal digests mean that a token id stands for the same text on both sides. Raises
    ModelFileError where the file has no vocabulary.
    """
    digest = hashlib.sha256()
    for token_id, piece in sorted(_pieces(path)):
        text = piece.encode("utf-8", "surrogatepass")
        digest.update(token_id.to_bytes(4, "little") + len(text).to_bytes(4, "little") + text)
    return digest.digest()


def _pieces(path: Path) -> Iterable[tuple[int, str]]:
    if path.is_dir():
        return _pieces_of_folder(path / "tokenizer.json")
    pieces = GgufFile(str(path)).metadata.get(Keys.Tokenizer.LIST)
    if not isinstance(pieces, list) or not pieces:
        raise ModelFileError(f"{path} has no vocabulary ({Keys.Tokenizer.LIST})")
    return enumerate(pieces)


def _pieces_of_folder(path: Path) -> Iterable[tuple[int, str]]:
    content = read_json(path)
    try:
        pieces = {int(token_id): str(piece) for piece, token_id in _model_pieces(content["model"])}
        pieces |= {int(token["id"]): str(token["content"]) for token in content["added_tokens"]}
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFileError(f"{path} has no vocabulary") from error
    if not pieces or min(pieces) < 0:
        raise ModelFileError(f"{path} has no vocabulary")
    return pieces.items()


def _model_pieces(model: Any) -> Iterable[tuple[str, int]]:
    """Byte-pair models have a table of ids, unigram models a list of pieces with scores."""
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        return vocab.items()
    return ((piece, token_id) for token_id, (piece, _) in enumerate(vocab))
