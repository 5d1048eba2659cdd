"""The token embedding, and the head that turns hidden states into logits."""

from abc import ABC, abstractmethod

import torch
from torch.nn import functional


class Vocabulary(ABC):
    """Both ends of the model: token ids in, logits out."""

    @abstractmethod
    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """(T,) token ids to (T, hidden) in the dtype of the activations."""

    @abstractmethod
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """(R, hidden) to (R, vocabulary) float32."""

    @abstractmethod
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """What stays resident."""


class DenseVocabulary(Vocabulary):
    """Weights in the dtype of the activations; a tied head is the embedding itself."""

    def __init__(self, embedding: torch.Tensor, head: torch.Tensor) -> None:
        self._embedding = embedding
        self._head = head

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        return functional.embedding(token_ids, self._embedding)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return functional.linear(hidden, self._head).float()

    def tensors(self) -> tuple[torch.Tensor, ...]:
        tied = self._head is self._embedding
        return (self._embedding,) if tied else (self._embedding, self._head)
