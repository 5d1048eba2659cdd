"""What the host remembers of requests whose logits are adjusted, so that a step costs little."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.gpu.request_rows import sampling_numbers
from engine.logit_adjustment import forbidden_token_ids
from engine.request import Request
from engine.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class Bias:
    """What is added to the logits of some tokens: (P,) int32 ids and float32 values."""

    token_ids: NDArray[np.int32]
    values: NDArray[np.float32]

    @classmethod
    def of(cls, params: SamplingParams, forbidden: Collection[int], vocab_size: int) -> "Bias":
        biases = dict(params.logit_bias)
        # Where none but forbidden tokens exist, they may come: one must.
        if len(forbidden) < vocab_size:
            biases |= dict.fromkeys(forbidden, -np.inf)
        assert all(0 <= token_id < vocab_size for token_id in biases), biases
        return cls(np.array([*biases], np.int32), np.array([*biases.values()], np.float32))


class AdjustedRequests:
    """A slot for each such request; who is new gets the one that was not used for longest.

    ``numbers`` (9, slots) int32: the words of ``sampling_numbers``, then the repetition, presence
    and frequency penalty as float32.
    """

    def __init__(self, num_slots: int, vocab_size: int) -> None:
        self.numbers: NDArray[np.int32] = np.zeros((9, num_slots), dtype=np.int32)
        self._vocab_size = vocab_size
        self._free = list(range(num_slots))
        # The last used one is the last.
        self._slots: dict[Request, int] = {}
        self._biases: dict[Request, Bias] = {}
        self._masked_biases: dict[Request, Bias] = {}

    def update(self, requests: Sequence[Request]) -> list[int]:
        """The slot of each; of at most as many different ones as there are slots."""
        for request in requests:
            if (slot := self._slots.pop(request, None)) is not None:
                self._slots[request] = slot
        return [self._slot(request) for request in requests]

    def bias(self, request: Request) -> Bias:
        """As it is now: tokens that may not come yet are masked. ``request`` must have a slot."""
        forbidden = forbidden_token_ids(request)
        biases = self._masked_biases if forbidden else self._biases
        if (bias := biases.get(request)) is None:
            bias = biases[request] = Bias.of(request.params, forbidden, self._vocab_size)
        return bias

    def _slot(self, request: Request) -> int:
        slot = self._slots.get(request)
        if slot is None:
            slot = self._slots[request] = self._free.pop() if self._free else self._take_oldest()
            params = request.params
            penalties = (
                params.repetition_penalty,
                params.presence_penalty,
                params.frequency_penalty,
            )
            self.numbers[:6, slot] = sampling_numbers(params)
            self.numbers[6:, slot] = np.array(penalties, np.float32).view(np.int32)
        return slot

    def _take_oldest(self) -> int:
        request = next(iter(self._slots))
        self._biases.pop(request, None)
        self._masked_biases.pop(request, None)
        return self._slots.pop(request)
