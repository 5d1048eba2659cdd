"""`baton kernels build`: compiles ahead of time what workers would compile at their start."""

import json
import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from batonctl.engine_parts import require_engine
from batonctl.errors import CommandError, InputError
from batonctl.progress import counting_progress
from batonctl.service_failure import command_error
from chassis.errors import ServiceError
from chassis.model_store import resolve

if TYPE_CHECKING:
    from engine.config import ModelConfig
    from engine.kernels.cuda.compilation import Compilation
    from engine.kernels.cuda.launch import Gpu

INSTALL_CUDA = "pip install 'baton-serve[cuda]'"
# Each process has torch and a compiler in memory.
_MOST_PROCESSES = 16
# Multiprocessors of the usual GPU (A100, H200, B200, RTX 5090): some kernels know whether what
# follows from it divides by 16.
_PROCESSORS = {80: 108, 90: 132, 100: 148, 120: 170}


def run_build(model: str, architectures: str | None, *, as_json: bool) -> None:
    """Prints what was compiled. Without ``architectures``, for this machine's GPU; where there is
    none, or no Triton, there is nothing to do."""
    require_engine("kernels cannot be built here")
    gpus = _own_gpu() if architectures is None else _gpus(architectures)
    reason = "this machine has no NVIDIA GPU (--arch builds for another one)" if not gpus else ""
    if find_spec("triton") is None:
        reason = f"Triton is not installed: {INSTALL_CUDA}"
    if reason:
        _report({"compiled": 0, "nothing": reason}, f"nothing to build: {reason}", as_json)
        return
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise InputError("TRITON_INTERPRET=1 is set: nothing can be compiled")
    config = model_config(model)
    from engine.kernels.cuda.compilation import cache_folder

    flashinfer = _build_flashinfer(config, has_gpu=architectures is None)
    compilations = [each for gpu in gpus for each in _list(config, gpu)]
    _compile(compilations)
    number, cache = len(compilations), str(cache_folder())
    facts = {"compiled": number, "flashinfer": flashinfer, "cache": cache}
    _report(facts, f"{number} kernels are in {cache}; FlashInfer: {flashinfer}", as_json)


def _report(facts: dict[str, Any], line: str, as_json: bool) -> None:
    print(json.dumps(facts) if as_json else line)


def _own_gpu() -> "list[Gpu]":
    import torch

    if not torch.cuda.is_available():
        return []
    from engine.kernels.cuda.launch import current_gpu

    gpu = current_gpu()
    return [] if gpu is None else [gpu]


def _gpus(architectures: str) -> "list[Gpu]":
    from engine.kernels.cuda.launch import Gpu

    try:
        numbers = [int(number) for number in architectures.split(",")]
        return [Gpu(divmod(number, 10), _PROCESSORS[number]) for number in dict.fromkeys(numbers)]
    except (ValueError, KeyError) as error:
        known = ",".join(map(str, _PROCESSORS))
        raise InputError(f"--arch takes some of {known}, not {architectures!r}") from error


def model_config(model: str) -> "ModelConfig":
    """The shape of a model; CommandError for one that cannot be read."""
    from engine.errors import EngineError
    from engine.weights.checkpoint import open_checkpoint

    try:
        return open_checkpoint(str(resolve(model).path)).config
    except ServiceError as error:
        raise command_error(error) from error
    except EngineError as error:
        raise CommandError(str(error)) from error


def _list(config: "ModelConfig", gpu: "Gpu") -> "list[Compilation]":
    """For workers with the settings that they have by default."""
    from decode_svc.config import DecodeSettings
    from engine.gpu.rehearsal import Rehearsal
    from engine.kernels.cuda.compilation import list_launches
    from engine.kernels.cuda.copy_pieces import rehearse_copy

    settings = DecodeSettings()

    def launches() -> None:
        rehearse_copy()
        Rehearsal(config, settings.engine.block_size).warm_up(
            max_sequences=settings.max_decode_batch,
            max_tokens=settings.engine.step_tokens_on("cuda"),
        )

    return list_launches(gpu, launches)


def _compile(compilations: "list[Compilation]") -> None:
    from engine.kernels.cuda.compilation import compile_all

    processes = min(len(os.sched_getaffinity(0)), _MOST_PROCESSES)
    with counting_progress() as progress:
        task = progress.add_task("compiling", total=len(compilations))
        for done in compile_all(compilations, processes):
            progress.update(task, advance=1, description=f"{done.kernel} sm_{done.architecture}")


def _build_flashinfer(config: "ModelConfig", *, has_gpu: bool) -> str:
    if find_spec("flashinfer") is None:
        return "not installed"
    if not has_gpu:
        return "not built, without --arch it is"
    from decode_svc.config import DecodeSettings
    from engine.attention.flashinfer_modules import build_flashinfer

    covered = build_flashinfer(config, DecodeSettings().engine.block_size)
    return "built" if covered else "does not cover this model"
