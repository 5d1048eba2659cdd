"""What the engine can compute on here."""

from typing import Literal

import torch

from engine.errors import ConfigurationError

Device = Literal["cpu", "cuda"]


def choose_device(asked: Literal["auto", "cpu", "cuda"]) -> Device:
    """An NVIDIA GPU where ``asked`` is "auto" and torch finds one.

    Raises ConfigurationError for a GPU that is asked for and not there.
    """
    found = torch.cuda.is_available()
    if asked == "cuda" and not found:
        raise ConfigurationError('device "cuda" needs an NVIDIA GPU and a torch built for it')
    if asked == "auto":
        return "cuda" if found else "cpu"
    return asked


def check_device_count(device: Device, num_ranks: int) -> None:
    """Raises ConfigurationError where there are fewer GPUs here than ranks, which have one each."""
    if device == "cuda" and (count := torch.cuda.device_count()) < num_ranks:
        raise ConfigurationError(
            f"{num_ranks} ranks need a GPU each, and this process sees {count}: choose a smaller "
            f"tensor_parallel_size"
        )
