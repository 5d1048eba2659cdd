"""What can be wrong with the tokenizer files of a model; met at start, never by a request.

TokenizerError              a file is missing, damaged or inconsistent; names the file
└── UnsupportedTokenizerError   its kind is not supported; the message lists what is
"""


class TokenizerError(Exception):
    """The model's tokenizer cannot be used; the message names the file."""


class UnsupportedTokenizerError(TokenizerError):
    """The tokenizer's kind is not supported; the message lists the supported ones."""
