"""What every launch has in common."""

from functools import cache

import torch


@cache
def pdl_options() -> dict[str, bool]:
    """Programmatic dependent launch where the GPU has it (compute capability 9.0 on).

    A kernel launched so may start while its predecessor drains. Each waits (gdc_wait) before it
    touches what an earlier kernel wrote or reads, and so may load weights before that. Only then it
    lets its successor start: sooner, kernels further down the chain would take their places on the
    processors before their turn, unevenly.
    """
    if torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0):
        return {"PDL": True, "launch_pdl": True}
    return {"PDL": False}


def next_power_of_two(number: int) -> int:
    """The lowest power of two that is not below ``number``."""
    return 1 << (number - 1).bit_length()
