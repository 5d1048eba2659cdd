"""Keeps the garbage collector out of what is there to stay."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """For large imports and vocabularies: torch alone makes half a million objects to stay.

    The collector would go through them again and again as they grow, which takes a fifth of the
    import, and later in the middle of requests. Afterwards it leaves alone whatever is there.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
