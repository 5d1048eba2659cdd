"""The best tokens of each row, in one order whatever the width asked for."""

import torch

_ID_BITS = 32
_ID_MASK = (1 << _ID_BITS) - 1


def best_tokens(values: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The ``width`` highest of float32 ``values`` (rows, vocabulary), and their ids.

    Among equals the lower id comes first: ``topk`` alone leaves their order open, and logits that
    were computed in bfloat16 are often equal. So it ranks integers that hold the value and the id.
    """
    bits = values.contiguous().view(torch.int32).long()
    # Floats order like integers where positive and the other way round where negative.
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    keys = (ordered << _ID_BITS) | (_ID_MASK - torch.arange(values.shape[1]))
    ids = _ID_MASK - (keys.topk(width, dim=-1).values & _ID_MASK)
    return values.gather(1, ids), ids
