"""The best tokens of a row, in one order whatever the number asked for."""

import torch

_SEGMENT = 64


def best_tokens(values: torch.Tensor, number: int) -> tuple[list[float], list[int]]:
    """The ``number`` highest of ``values`` (vocabulary,), best first, and their ids.

    Among equals the lower id comes first: ``topk`` leaves their order open, and logits that were
    computed in bfloat16 are often equal.
    """
    if number == 0:
        return [], []
    segments = values[: values.numel() // _SEGMENT * _SEGMENT].view(-1, _SEGMENT)
    ids = torch.arange(values.numel())
    if number <= segments.shape[0]:
        # So many segments have a value at least this high: the best are among those who do.
        floor = segments.amax(dim=-1).topk(number).values[-1]
        ids = (values >= floor).nonzero()[:, 0]
    best, order = values[ids].sort(descending=True, stable=True)
    return best[:number].tolist(), ids[order[:number]].tolist()
