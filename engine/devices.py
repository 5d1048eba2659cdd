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
