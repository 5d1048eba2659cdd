"""Hugging Face folders with SmolLM2's vocabulary, as the families write their own."""

import json
from pathlib import Path
from typing import Any

import tokenizers
from gguf.constants import Keys
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from modelfiles.gguf_file import GgufFile
from tests.gateway.text.vocabularies import KEYS, spm_metadata

LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def write_folder(folder: Path, engine: tokenizers.Tokenizer, **files: Any) -> Path:
    """Writes tokenizer.json and, from ``files``, JSON files by their stem; None leaves one out."""
    folder.mkdir(exist_ok=True)
    engine.save(str(folder / "tokenizer.json"))
    defaults: dict[str, Any] = {
        "config": {"max_position_embeddings": 4096, "vocab_size": 49152, "model_type": "llama"},
        "tokenizer_config": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<s>",
            "eos_token": {"__type": "AddedToken", "content": "</s>", "normalized": False},
            "clean_up_tokenization_spaces": False,
        },
    }
    for stem, content in (defaults | files).items():
        if content is not None:
            (folder / f"{stem}.json").write_text(json.dumps(content))
    return folder


def byte_level_engine(smollm2: Path) -> tokenizers.Tokenizer:
    """As Llama 3, Qwen and SmolLM2 have it."""
    metadata = GgufFile(str(smollm2)).metadata
    vocab = {piece: i for i, piece in enumerate(metadata[KEYS.LIST])}
    merges = [tuple(merge.split(" ", 1)) for merge in metadata[Keys.Tokenizer.MERGES]]
    engine = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=True))
    engine.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(LLAMA3_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    engine.decoder = decoders.ByteLevel()
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    engine.add_special_tokens([AddedToken(n, normalized=False) for n in names])
    engine.add_special_tokens([AddedToken("<s>", normalized=False)])
    engine.add_special_tokens([AddedToken("</s>", normalized=False)])
    engine.add_tokens([AddedToken("<think>", normalized=False)])
    engine.post_processor = processors.TemplateProcessing(
        single=["<s>", "$A"], special_tokens=[("<s>", engine.token_to_id("<s>"))]
    )
    # Training leaves these behind; a server must not cut prompts.
    engine.enable_truncation(max_length=8)
    return engine


def spm_engine(smollm2: Path) -> tokenizers.Tokenizer:
    """As Llama 2 has it; Mistral writes the same with Metaspace."""
    metadata = spm_metadata(smollm2)
    ids = {piece: i for i, piece in enumerate(metadata[KEYS.LIST])}
    merges = sorted(
        (ids[piece], piece[:cut], piece[cut:])
        for piece in ids
        for cut in range(1, len(piece))
        if not piece.startswith(("<", "[")) and piece[:cut] in ids and piece[cut:] in ids
    )
    engine = tokenizers.Tokenizer(
        models.BPE(
            vocab=ids,
            merges=[(left, right) for _, left, right in merges],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    engine.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    engine.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    names = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
    # Looked for in normalized text, as some files have it.
    engine.add_special_tokens([AddedToken(name, normalized=name == "[INST]") for name in names])
    engine.post_processor = processors.TemplateProcessing(
        single=["<s>", "$A"], special_tokens=[("<s>", 1)]
    )
    return engine


def metaspace_engine(smollm2: Path) -> tokenizers.Tokenizer:
    """As newer SentencePiece models are converted."""
    engine = spm_engine(smollm2)
    engine.normalizer = normalizers.Sequence([])
    engine.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return engine


ENGINES = {"byte-level": byte_level_engine, "spm": spm_engine, "metaspace": metaspace_engine}
