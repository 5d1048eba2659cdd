"""What a gateway serves, and expects its workers to serve."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServedModel:
    """``vocabulary_digest`` is that of the tokenizer that the gateway uses (protocol 1.4)."""

    name: str
    vocabulary_digest: bytes
