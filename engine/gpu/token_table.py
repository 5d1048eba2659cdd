"""How often requests said each token, counted on the device."""

import numpy as np
import torch

from engine.gpu.staging import send
from engine.kernels.cuda.adjust_logits import count_tokens
from engine.request import Request

# Words between slots are a multiple of it: see ``send``.
_ALIGNMENT = 4


class TokenTable:
    """``counts`` (slots, vocabulary and padding) int32, as ``adjust_logits`` reads them.

    A request that has a slot for the first time, or again, brings all that the host knows of it;
    from then on each token is counted by the step that computes it, before the host has seen it.
    """

    def __init__(self, num_slots: int, vocab_size: int, device: torch.device) -> None:
        stride = -(-vocab_size // _ALIGNMENT) * _ALIGNMENT
        self.counts = torch.zeros(num_slots, stride, dtype=torch.int32, device=device)
        # Whose tokens a slot counts, and how many of them.
        self._counted: list[tuple[Request | None, int]] = [(None, 0)] * num_slots

    def catch_up(self, slot: int, request: Request) -> bool:
        """Before a step draws for ``request``: counts what the host knows. Whether the last token
        is left to the step, which must count it then.

        That is so for the output of who has one choice: another step may be about to draw it. A
        prompt is known, and so is what several choices draw from.
        """
        owner, counted = self._counted[slot]
        leaves_last = len(request.choices) == 1 and request.num_output_tokens > 0
        end = request.num_tokens - leaves_last
        if owner is not request or counted > end:
            self.counts[slot].zero_()
            counted = 0
        if counted < end:
            token_ids = np.array(request.token_ids[counted:end], dtype=np.int32)
            assert token_ids.min() >= 0, "the last token alone may be pending"
            (moved,) = send([token_ids], self.counts.device)
            num_prompt_tokens = max(request.num_prompt_tokens - counted, 0)
            count_tokens(moved, self.counts, slot, num_prompt_tokens)
        self._counted[slot] = request, request.num_tokens
        return leaves_last
