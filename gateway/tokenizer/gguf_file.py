"""Tokenizers that live inside a GGUF file."""

from pathlib import Path
from typing import Any

import tokenizers
from gguf.constants import Keys
from tokenizers import AddedToken, models, processors

from gateway.chat_template import ChatTemplate, ChatTemplateError
from gateway.tokenizer.errors import TokenizerError, UnsupportedTokenizerError
from gateway.tokenizer.pre_tokenizer import find_pre_tokenizer_type
from gateway.tokenizer.spm import build_spm_model, build_spm_normalizer
from gateway.tokenizer.token_table import TokenTable
from gateway.tokenizer.tokenizer import SpecialTokens, Tokenizer
from gateway.tokenizer.vocabulary import (
    BYTE_LEVEL_ALPHABET,
    Vocabulary,
    byte_level_bytes,
    spm_bytes,
)
from modelfiles.errors import ModelFileError
from modelfiles.gguf_file import GgufFile

_KEYS = Keys.Tokenizer
# What SentencePiece models mean where the file does not say.
_SPM_DEFAULTS = {
    _KEYS.UNK_ID: 0,
    _KEYS.BOS_ID: 1,
    _KEYS.EOS_ID: 2,
    _KEYS.ADD_BOS: True,
    _KEYS.ADD_PREFIX: True,
}


def load_gguf_tokenizer(path: Path) -> Tokenizer:
    """Reads the tokenizer of a GGUF file, with its own vocabulary, merges and chat template.

    Raises TokenizerError, naming the file.
    """
    try:
        return _build_tokenizer(GgufFile(str(path)).metadata)
    except ModelFileError as error:
        raise TokenizerError(str(error)) from error
    except KeyError as error:
        raise TokenizerError(f"{path}: the key {error} is missing") from error
    except ChatTemplateError as error:
        raise TokenizerError(f"{path}: {error}") from error
    except TokenizerError as error:
        raise type(error)(f"{path}: {error}") from error


def _build_tokenizer(metadata: dict[str, Any]) -> Tokenizer:
    metadata = _with_defaults(metadata)
    table = TokenTable.read(metadata)
    is_spm = metadata[_KEYS.MODEL] == "llama"
    engine = _build_spm_engine(metadata, table) if is_spm else _build_bpe_engine(metadata, table)
    # These are found in a text before anything is merged.
    specials = [AddedToken(table.pieces[i], normalized=False) for i in table.special_ids]
    words = [AddedToken(table.pieces[i], normalized=False) for i in table.user_defined_ids]
    engine.add_special_tokens(specials)
    engine.add_tokens(words)
    special_tokens = _read_special_tokens(metadata, table)
    engine.post_processor = _surround(
        metadata[_KEYS.BOS_ID] if metadata[_KEYS.ADD_BOS] else None,
        metadata[_KEYS.EOS_ID] if metadata.get(_KEYS.ADD_EOS, False) else None,
    )
    vocabulary = Vocabulary(
        table.text_bytes(spm_bytes if is_spm else byte_level_bytes),
        table.special_ids,
        size=len(table.pieces),
        strips_leading_space=is_spm and metadata[_KEYS.ADD_PREFIX],
    )
    return Tokenizer(
        engine,
        vocabulary,
        special_tokens,
        _read_chat_template(metadata, table),
        metadata[Keys.LLM.CONTEXT_LENGTH.format(arch=metadata[Keys.General.ARCHITECTURE])],
    )


def _with_defaults(metadata: dict[str, Any]) -> dict[str, Any]:
    """Fills in what the kind of tokenizer means where the file does not say."""
    model = metadata[_KEYS.MODEL]
    if model == "llama":
        return _SPM_DEFAULTS | metadata
    if model == "gpt2":
        pre_type = find_pre_tokenizer_type(metadata.get(_KEYS.PRE, "default"))
        return {_KEYS.PRE: "default", _KEYS.ADD_BOS: pre_type.adds_bos} | metadata
    raise UnsupportedTokenizerError(
        f"tokenizer model {model!r} is not supported; supported: gpt2, llama"
    )


def _build_bpe_engine(metadata: dict[str, Any], table: TokenTable) -> tokenizers.Tokenizer:
    pre_type = find_pre_tokenizer_type(metadata[_KEYS.PRE])
    # A byte without a token is dropped, but first it keeps its neighbours from merging: it gets an
    # id past the others, and Tokenizer leaves those out.
    missing = [piece for piece in BYTE_LEVEL_ALPHABET if piece not in table.ids]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata[_KEYS.MERGES]]
    try:
        model = models.BPE(
            vocab=table.ids | {piece: len(table.ids) + i for i, piece in enumerate(missing)},
            merges=merges,
            ignore_merges=pre_type.ignore_merges,
        )
    except Exception as error:  # the binding raises nothing more precise
        raise TokenizerError(f"the merges do not fit the vocabulary: {error}") from error
    engine = tokenizers.Tokenizer(model)
    engine.pre_tokenizer = pre_type.build()
    return engine


def _build_spm_engine(metadata: dict[str, Any], table: TokenTable) -> tokenizers.Tokenizer:
    scores = metadata[_KEYS.SCORES]
    if len(scores) != len(table.pieces):
        raise TokenizerError(f"{len(table.pieces)} tokens but {len(scores)} scores")
    unknown = table.piece(metadata[_KEYS.UNK_ID])
    engine = tokenizers.Tokenizer(build_spm_model(table.ids, scores, table.normal_ids, unknown))
    engine.normalizer = build_spm_normalizer(metadata[_KEYS.ADD_PREFIX])
    return engine


def _surround(prefix: int | None, suffix: int | None) -> processors.TemplateProcessing:
    """Puts a start token before, and an end token after, a text whose caller asks for them."""
    before, after = ([f"[{i}]"] if i is not None else [] for i in (prefix, suffix))
    return processors.TemplateProcessing(
        single=[*before, "$A", *after],
        special_tokens=[(f"[{i}]", i) for i in {prefix, suffix} - {None}],
    )


def _read_special_tokens(metadata: dict[str, Any], table: TokenTable) -> SpecialTokens:
    named = (metadata.get(key) for key in (_KEYS.EOS_ID, _KEYS.EOT_ID, _KEYS.EOM_ID))
    ends = table.end_ids.union(i for i in named if i is not None)
    return SpecialTokens(metadata.get(_KEYS.BOS_ID), ends, chat_needs_bos=metadata[_KEYS.ADD_BOS])


def _read_chat_template(metadata: dict[str, Any], table: TokenTable) -> ChatTemplate | None:
    if (source := metadata.get(_KEYS.CHAT_TEMPLATE)) is None:
        return None
    bos, eos = (table.piece(metadata.get(key)) or "" for key in (_KEYS.BOS_ID, _KEYS.EOS_ID))
    return ChatTemplate(source, bos, eos)
