"""What every launch has in common."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import torch


@dataclass(frozen=True, slots=True)
class Gpu:
    """What kernels are compiled for: the compute capability, and how many multiprocessors share
    the work of a step."""

    capability: tuple[int, int]
    num_processors: int


_assumed: Gpu | None = None


def current_gpu() -> Gpu | None:
    """This process's GPU, or the one that ``assuming`` says; None without one."""
    return _assumed or _own_gpu()


@cache
def _own_gpu() -> Gpu | None:
    if not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties()
    return Gpu((properties.major, properties.minor), properties.multi_processor_count)


@contextmanager
def assuming(gpu: Gpu) -> Iterator[None]:
    """Inside, launches are laid out for ``gpu``, whatever this machine has."""
    global _assumed
    _assumed = gpu
    try:
        yield
    finally:
        _assumed = None


def pdl_options() -> dict[str, bool]:
    """Programmatic dependent launch where the GPU has it (compute capability 9.0 on).

    A kernel launched so may start while its predecessor drains. Each waits (gdc_wait) before it
    touches what an earlier kernel wrote or reads, and so may load weights before that. Only then it
    lets its successor start: sooner, kernels further down the chain would take their places on the
    processors before their turn, unevenly.
    """
    gpu = current_gpu()
    if gpu is not None and gpu.capability >= (9, 0):
        return {"PDL": True, "launch_pdl": True}
    return {"PDL": False}


def next_power_of_two(number: int) -> int:
    """The lowest power of two that is not below ``number``."""
    return 1 << (number - 1).bit_length()
