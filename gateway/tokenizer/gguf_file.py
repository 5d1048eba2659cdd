"""Tokenizers that live inside a GGUF file."""

from pathlib import Path
from typing import Any

import tokenizers
from gguf.constants import Keys
from tokenizers import AddedToken, models, processors

from gateway.chat_template import ChatTemplate, ChatTemplateError
from gateway.tokenizer.errors import TokenizerError, UnsupportedTokenizerError
from gateway.tokenizer.gguf_metadata import read_gguf_metadata
from gateway.tokenizer.pre_tokenizer import PreTokenizerType, find_pre_tokenizer_type
from gateway.tokenizer.spm import build_spm_model, build_spm_normalizer
from gateway.tokenizer.token_table import TokenTable
from gateway.tokenizer.tokenizer import SpecialTokens, Tokenizer
from gateway.tokenizer.vocabulary import Vocabulary, byte_level_bytes, spm_bytes

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
    metadata = read_gguf_metadata(path)
    try:
        return _build_tokenizer(metadata)
    except KeyError as error:
        raise TokenizerError(f"{path}: the key {error} is missing") from error
    except ChatTemplateError as error:
        raise TokenizerError(f"{path}: {error}") from error
    except TokenizerError as error:
        raise type(error)(f"{path}: {error}") from error


def _build_tokenizer(metadata: dict[str, Any]) -> Tokenizer:
    table = TokenTable.read(metadata)
    model = metadata[_KEYS.MODEL]
    if model == "llama":
        metadata = _SPM_DEFAULTS | metadata
        engine = _build_spm_engine(metadata, table)
        text_bytes = table.text_bytes(spm_bytes)
    elif model == "gpt2":
        pre_type = find_pre_tokenizer_type(metadata.get(_KEYS.PRE, "default"))
        metadata = {_KEYS.ADD_BOS: pre_type.adds_bos, _KEYS.ADD_PREFIX: False} | metadata
        engine = _build_bpe_engine(metadata, table, pre_type)
        text_bytes = table.text_bytes(byte_level_bytes)
    else:
        raise UnsupportedTokenizerError(
            f"tokenizer model {model!r} is not supported; supported: gpt2, llama"
        )
    for piece, is_special in table.atoms():
        token = AddedToken(piece, normalized=False, special=is_special)
        (engine.add_special_tokens if is_special else engine.add_tokens)([token])
    bos, eos = metadata.get(_KEYS.BOS_ID), metadata.get(_KEYS.EOS_ID)
    engine.post_processor = _surround(
        metadata[_KEYS.BOS_ID] if metadata[_KEYS.ADD_BOS] else None,
        metadata[_KEYS.EOS_ID] if metadata.get(_KEYS.ADD_EOS, False) else None,
    )
    ends = {eos, metadata.get(_KEYS.EOT_ID), metadata.get(_KEYS.EOM_ID), *table.end_ids}
    return Tokenizer(
        engine,
        Vocabulary(text_bytes, table.special_ids, len(table.pieces), metadata[_KEYS.ADD_PREFIX]),
        SpecialTokens(
            bos, frozenset(i for i in ends if i is not None), chat_needs_bos=metadata[_KEYS.ADD_BOS]
        ),
        _build_chat_template(metadata, table, bos, eos),
        metadata[Keys.LLM.CONTEXT_LENGTH.format(arch=metadata[Keys.General.ARCHITECTURE])],
    )


def _build_bpe_engine(
    metadata: dict[str, Any], table: TokenTable, pre_type: PreTokenizerType
) -> tokenizers.Tokenizer:
    try:
        model = models.BPE(
            vocab=table.ids,
            merges=[tuple(merge.split(" ", 1)) for merge in metadata[_KEYS.MERGES]],
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


def _build_chat_template(
    metadata: dict[str, Any], table: TokenTable, bos: int | None, eos: int | None
) -> ChatTemplate | None:
    if (source := metadata.get(_KEYS.CHAT_TEMPLATE)) is None:
        return None
    return ChatTemplate(source, table.piece(bos) or "", table.piece(eos) or "")
