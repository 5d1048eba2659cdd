"""Compiling ahead of time what a piece of code would launch, with or without a GPU.

Triton's cache goes by the types, constants and alignment of a launch. So that what is compiled is
what will be looked for, the launches themselves are listed: Triton tells its hook of each before it
would compile, and is told to leave it.
"""

import importlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from engine.kernels.cuda.launch import Gpu, assuming
from engine.parent_process import end_with_parent

_WARP_SIZE = 32


@dataclass(frozen=True, slots=True)
class Compilation:
    """A kernel, ``architecture`` (90 is compute capability 9.0), and the rest in Triton's words."""

    module: str
    kernel: str
    architecture: int
    specialization: str

    def compile(self) -> None:
        """Into Triton's cache, unless it is there; raises what the compiler raises."""
        kernel = getattr(importlib.import_module(self.module), self.kernel)
        driver.set_active(_Target(self.architecture))
        kernel.preload(self.specialization)


class _Target:
    """As much of a driver as is asked before a kernel is loaded."""

    def __init__(self, architecture: int) -> None:
        self._architecture = architecture

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._architecture, _WARP_SIZE)

    def get_current_device(self) -> int:
        """Kernels keep what they know of a device under its number."""
        return -self._architecture

    def get_current_stream(self, device: int) -> int:
        return 0


def cache_folder() -> Path:
    """Where Triton keeps what it compiled."""
    return Path(knobs.cache.dir)


def list_launches(gpu: Gpu, function: Callable[[], object]) -> list[Compilation]:
    """What ``function`` would launch on ``gpu``, each once; it gets nothing computed, so let its
    tensors be on the device "meta". The process is of no use for real launches afterwards."""
    major, minor = gpu.capability
    found: dict[Compilation, None] = {}

    def note(*, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
        kernel = fn.jit_function
        data = json.loads(compile["specialization_data"])
        # Of no meaning to the compiler: the order of keyword arguments shows in it.
        specialization = json.dumps(data | {"key": ""})
        name = kernel.fn.__name__
        found[Compilation(kernel.module, name, 10 * major + minor, specialization)] = None
        return True

    driver.set_active(_Target(10 * major + minor))
    knobs.runtime.jit_cache_hook = note
    try:
        with assuming(gpu):
            function()
    finally:
        knobs.runtime.jit_cache_hook = None
    return list(found)


def compile_all(compilations: Sequence[Compilation], processes: int) -> Iterator[Compilation]:
    """Compiles side by side, in processes of their own; yields each that is done.

    Raises what the first one that fails raises. The processes end with this one, however it ends.
    """
    with ProcessPoolExecutor(
        processes, get_context("spawn"), initializer=end_with_parent, initargs=(os.getpid(),)
    ) as pool:
        pending = {pool.submit(each.compile): each for each in compilations}
        try:
            for future in as_completed(pending):
                future.result()
                yield pending[future]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
