"""The token embedding, and the head that turns hidden states into logits."""

from abc import ABC, abstractmethod

import torch
from torch.nn import functional

from engine.kernels.int8_linear import Int8Weight, int8_rows
from engine.layers.linear import Linear, Q8Linear


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
    """An embedding in the dtype of the activations and any linear layer as head."""

    __slots__ = ("_embedding", "_head")

    def __init__(self, embedding: torch.Tensor, head: Linear) -> None:
        self._embedding = embedding
        self._head = head

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        return functional.embedding(token_ids, self._embedding)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._head(hidden).float()

    def tensors(self) -> tuple[torch.Tensor, ...]:
        return (self._embedding, *self._head.tensors())


class Q8Vocabulary(Vocabulary):
    """8-bit weights; tied ones are the same Int8Weight, from which both ends are served."""

    __slots__ = ("_dtype", "_embedding", "_head")

    def __init__(self, embedding: Int8Weight, head: Int8Weight, dtype: torch.dtype) -> None:
        self._embedding = embedding
        self._head = Q8Linear(head)
        self._dtype = dtype

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        return int8_rows(self._embedding, token_ids).to(self._dtype)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._head(hidden).float()

    def tensors(self) -> tuple[torch.Tensor, ...]:
        halves = self._embedding.halves
        return (halves.packed, halves.scale_zero, *self._head.tensors())
