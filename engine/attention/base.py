"""What every attention backend offers: plan once a step on the host, run once a layer."""

from abc import ABC, abstractmethod

import torch

from engine.batch import ForwardBatch


class AttentionBackend(ABC):
    """Causal attention of new tokens over the paged KV pool that the backend was created with.

    Query head h reads KV head ``h // (query heads / KV heads)``; scores are scaled by
    ``head_dim ** -0.5``.
    """

    @abstractmethod
    def plan(self, batch: ForwardBatch) -> None:
        """Prepares a step: everything that does not depend on the layer. Invalidates the last plan.

        The tensors of ``batch`` must stay unchanged until the last ``run`` of the step.
        """

    @abstractmethod
    def run(self, layer: int, query: torch.Tensor, window: int | None = None) -> torch.Tensor:
        """Attends with ``query`` (T, query heads, head_dim) and returns the same shape.

        K and V of the step's tokens must be in the pool already. With ``window`` a token sees
        itself and the ``window - 1`` tokens before it.
        """
