"""How often a request said each token, kept up as it grows."""

from array import array
from collections.abc import Sequence

import torch


class TokenCounts:
    """Token ids of a sequence in the order of their first use, and how often output has them.

    Grows with the distinct tokens, so never beyond the vocabulary. To catch up costs what the
    sequence grew by: one token in a decode step, everything in the first step of an attempt.
    """

    def __init__(self) -> None:
        self._num_counted = 0
        self._places: dict[int, int] = {}
        self._ids = array("q")
        self._times = array("f")

    def catch_up(self, token_ids: Sequence[int], num_prompt_tokens: int) -> None:
        """Counts what came since the last call; ``token_ids`` may only have grown."""
        for position in range(self._num_counted, len(token_ids)):
            token_id = token_ids[position]
            place = self._places.setdefault(token_id, len(self._ids))
            if place == len(self._ids):
                self._ids.append(token_id)
                self._times.append(0.0)
            self._times[place] += position >= num_prompt_tokens
        self._num_counted = len(token_ids)

    def ids(self) -> torch.Tensor:
        """The tokens of prompt and output, (distinct,) int64. Valid until the next ``catch_up``."""
        return torch.frombuffer(self._ids, dtype=torch.int64)

    def times(self) -> torch.Tensor:
        """Occurrences of each in the output, (distinct,) float32; valid as long as ``ids``."""
        return torch.frombuffer(self._times, dtype=torch.float32)
