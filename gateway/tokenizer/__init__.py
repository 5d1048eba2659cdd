"""Tokenizers of the supported models, read from their own files."""

from pathlib import Path

from gateway.tokenizer.errors import TokenizerError, UnsupportedTokenizerError
from gateway.tokenizer.gguf_file import load_gguf_tokenizer
from gateway.tokenizer.hf_folder import load_folder_tokenizer
from gateway.tokenizer.tokenizer import Tokenizer

__all__ = ["Tokenizer", "TokenizerError", "UnsupportedTokenizerError", "load_tokenizer"]


def load_tokenizer(model_path: str | Path) -> Tokenizer:
    """Reads the tokenizer of a model: a GGUF file or a Hugging Face folder.

    Raises TokenizerError, naming the file; UnsupportedTokenizerError with the list of what is.
    """
    path = Path(model_path)
    if path.is_dir():
        return load_folder_tokenizer(path)
    if path.suffix == ".gguf":
        return load_gguf_tokenizer(path)
    raise UnsupportedTokenizerError(f"{path}: neither a .gguf file nor a folder")
