"""Small GGUF files with SmolLM2's vocabulary under other tokenizer types.

What differs between byte-level tokenizers is the cutting into words. To show it, a vocabulary needs
pieces that reach over every possible cut, which SmolLM2's does not have: they are added. A
SentencePiece vocabulary is made of the same pieces.
"""

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from gguf import GGUFValueType, GGUFWriter
from gguf.constants import Keys, TokenType

from gateway.tokenizer.vocabulary import SPM_SPACE, byte_level_bytes
from modelfiles.gguf_file import GgufFile

KEYS = Keys.Tokenizer
NUM_SPM_PIECES = 8000


def write_gguf(path: Path, metadata: dict[str, Any]) -> Path:
    """A GGUF file without tensors that llama.cpp and the gateway both read."""
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(8192)
    writer.add_embedding_length(576)
    writer.add_block_count(1)
    writer.add_head_count(9)
    writer.add_feed_forward_length(1536)
    writer.add_layer_norm_rms_eps(1e-5)
    for key, value in metadata.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_key_value(key, value, GGUFValueType.BOOL)
        elif isinstance(value, int):
            writer.add_key_value(key, value, GGUFValueType.UINT32)
        else:
            writer.add_key_value(key, value, GGUFValueType.STRING)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def byte_level_metadata(smollm2: Path, pre_type: str) -> dict[str, Any]:
    """SmolLM2's tokenizer under the name of another pre-tokenizer."""
    metadata = GgufFile(str(smollm2)).metadata
    kept = {k: v for k, v in metadata.items() if k.startswith("tokenizer.")}
    del kept[KEYS.ADD_BOS]
    known = set(kept[KEYS.LIST])
    merges = [(a, b) for a, b in _crossing_merges() if a + b not in known]
    kept[KEYS.LIST] += [a + b for a, b in merges]
    kept[KEYS.TOKEN_TYPE] += [int(TokenType.NORMAL)] * len(merges)
    kept[KEYS.MERGES] += [f"{a} {b}" for a, b in merges]
    return kept | {KEYS.PRE: pre_type}


def _crossing_merges() -> Iterator[tuple[str, str]]:
    """Every two ASCII characters side by side, and digits by three and four."""
    alphabet = {byte_level_bytes(chr(i)): chr(i) for i in range(0x21, 0x144) if i != 0xAD}
    ascii_pieces = [alphabet[bytes([byte])] for byte in (9, 10, 13, *range(32, 127))]
    yield from product(ascii_pieces, ascii_pieces)
    for length in (2, 3):
        for number in product("0123456789", repeat=length):
            for digit in "0123456789":
                yield "".join(number), digit


def spm_metadata(smollm2: Path) -> dict[str, Any]:
    """A SentencePiece vocabulary: control tokens, bytes, and SmolLM2's first pieces."""
    metadata = GgufFile(str(smollm2)).metadata
    pieces = {"<unk>": TokenType.UNKNOWN, "<s>": TokenType.CONTROL, "</s>": TokenType.CONTROL}
    pieces |= {f"<0x{byte:02X}>": TokenType.BYTE for byte in range(256)}
    pieces |= {"[INST]": TokenType.CONTROL, "[/INST]": TokenType.CONTROL}
    pieces |= {"<tool>": TokenType.USER_DEFINED}
    num_others = len(pieces)
    for piece, kind in zip(metadata[KEYS.LIST], metadata[KEYS.TOKEN_TYPE], strict=True):
        text = byte_level_bytes(piece).decode(errors="replace").replace(" ", SPM_SPACE)
        if kind == TokenType.NORMAL and not {"\ufffd", "\0"} & set(text):
            pieces.setdefault(text, TokenType.NORMAL)
        if len(pieces) == num_others + NUM_SPM_PIECES:
            break
    return {
        KEYS.MODEL: "llama",
        KEYS.LIST: list(pieces),
        KEYS.TOKEN_TYPE: [int(kind) for kind in pieces.values()],
        KEYS.SCORES: [float(min(0, num_others - i)) for i in range(len(pieces))],
        KEYS.BOS_ID: 1,
        KEYS.EOS_ID: 2,
        KEYS.UNK_ID: 0,
    }


def write_vocabulary(folder: Path, smollm2: Path, kind: str) -> Path:
    """``kind`` is "spm" or the name of a pre-tokenizer."""
    metadata = spm_metadata(smollm2) if kind == "spm" else byte_level_metadata(smollm2, kind)
    return write_gguf(folder / f"{kind}.gguf", metadata)
