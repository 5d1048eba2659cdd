"""How text is cut into words before byte pairs are merged: one table, by the GGUF file's name.

A type is a list of regular expressions applied one after the other; matches and the gaps between
them become words. They are equal to llama.cpp's, which the tests check on real text.
"""

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

from gateway.tokenizer.errors import UnsupportedTokenizerError

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# Spelled out: (?i:'s) would also match U+017F, which llama.cpp does not.
_ENDINGS = "'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"(?:{_ENDINGS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_TAIL}"
_QWEN2 = rf"(?:{_ENDINGS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_TAIL}"
# Words with an upper-case head and a lower-case rest, as llama.cpp approximates them.
_HEAD, _REST = r"(?:(?=\p{L})[^a-z])", r"(?:(?=\p{L})[^A-Z])"
_TEKKEN_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_HEAD}*{_REST}+|[^\r\n\p{{L}}\p{{N}}]?{_HEAD}+{_REST}*"
    rf"|\p{{N}}|{_TEKKEN_TAIL}"
)
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_HEAD}*{_REST}+(?:{_ENDINGS})?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_HEAD}+{_REST}*(?:{_ENDINGS})?"
    rf"|\p{{N}}{{1,3}}|{_TEKKEN_TAIL}"
)
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")


@dataclass(frozen=True, slots=True)
class PreTokenizerType:
    """One row of the table.

    ``ignore_merges``: a word that is itself a token is not built from merges. ``adds_bos``:
    prompts begin with the start token where the file does not say.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    adds_bos: bool = False

    def build(self) -> pre_tokenizers.PreTokenizer:
        """Cuts by the patterns, then maps each word's bytes to the byte-level alphabet."""
        splits = [pre_tokenizers.Split(Regex(p), behavior="isolated") for p in self.patterns]
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*splits, byte_level])


_GPT2_TYPE = PreTokenizerType((_GPT2,))
_DIGITS_TYPE = PreTokenizerType((r"\p{N}", _GPT2))
_LLAMA3_TYPE = PreTokenizerType((_LLAMA3,), ignore_merges=True, adds_bos=True)
_QWEN2_TYPE = PreTokenizerType((_QWEN2,))

PRE_TOKENIZER_TYPES = {
    "default": PreTokenizerType(_DEFAULT),
    "gpt-2": _GPT2_TYPE,
    "phi-2": _GPT2_TYPE,
    "olmo": _GPT2_TYPE,
    "mpt": _GPT2_TYPE,
    "smollm": _DIGITS_TYPE,
    "starcoder": _DIGITS_TYPE,
    "refact": _DIGITS_TYPE,
    "codeshell": _DIGITS_TYPE,
    "command-r": _DIGITS_TYPE,
    "llama-bpe": _LLAMA3_TYPE,
    "llama3": _LLAMA3_TYPE,
    "llama-v3": _LLAMA3_TYPE,
    "falcon3": _LLAMA3_TYPE,
    "pixtral": _LLAMA3_TYPE,
    "dbrx": PreTokenizerType((_LLAMA3,)),
    "smaug-bpe": PreTokenizerType((_LLAMA3,)),
    "qwen2": _QWEN2_TYPE,
    "deepseek-r1-qwen": _QWEN2_TYPE,
    "megrez": _QWEN2_TYPE,
    "stablelm2": _QWEN2_TYPE,
    "tekken": PreTokenizerType((_TEKKEN,), ignore_merges=True, adds_bos=True),
    "gpt-4o": PreTokenizerType((_GPT4O,)),
    "llama4": PreTokenizerType((_GPT4O,)),
}


def find_pre_tokenizer_type(name: str) -> PreTokenizerType:
    """Raises UnsupportedTokenizerError, with the list, for a name that is not in the table."""
    if (found := PRE_TOKENIZER_TYPES.get(name)) is None:
        supported = ", ".join(PRE_TOKENIZER_TYPES)
        raise UnsupportedTokenizerError(
            f"pre-tokenizer {name!r} is not supported; supported: {supported}"
        )
    return found
