"""A GPU that is lost to this process."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from engine.errors import DeviceLost


@contextmanager
def telling_losses() -> Iterator[None]:
    """Raises DeviceLost for an error that every later call would meet too."""
    try:
        yield
    except torch.AcceleratorError as error:
        raise DeviceLost(str(error)) from error
