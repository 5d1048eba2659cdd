"""Log probabilities on their way from the device."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from engine.batch import TokenLogprobs
from engine.kernels.cuda.rank_logprobs import words_a_row

# Of a row with as many likeliest tokens as a client may ask for.
USUAL_WORDS = words_a_row(20)


@dataclass(frozen=True, slots=True)
class Ranking:
    """``words`` (rows, words_a_row(width)) int32, as ``rank_logprobs`` finds them.

    A row is of the token at one of ``places`` among those that the step drew, and asked for one of
    ``numbers`` likeliest tokens.
    """

    words: torch.Tensor
    width: int
    places: Sequence[int]
    numbers: Sequence[int]

    def read(self, words: NDArray[np.int32], drawn: Sequence[int]) -> dict[int, TokenLogprobs]:
        """By place; from the words as they have landed, and all tokens that the step drew."""
        words = words.reshape(self.words.shape)
        width = self.width
        logprobs = words[:, : 1 + width].view(np.float32)
        ids = words[:, 1 + width : 1 + 2 * width]
        # The device orders logits; the log probabilities of some may be equal.
        order = np.lexsort((ids, -logprobs[:, 1:]))
        ids = np.take_along_axis(ids, order, axis=1)
        best = np.take_along_axis(logprobs[:, 1:], order, axis=1)
        return {
            place: TokenLogprobs(
                drawn[place], chosen, tuple(zip(row_ids, values, strict=True))[:number]
            )
            for place, number, chosen, row_ids, values in zip(
                self.places,
                self.numbers,
                logprobs[:, 0].tolist(),
                ids.tolist(),
                best.tolist(),
                strict=True,
            )
        }
