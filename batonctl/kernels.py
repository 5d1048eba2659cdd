"""`baton kernels`: what the engine runs on this machine, and why."""

import datetime
import json
from dataclasses import asdict
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from batonctl.engine_parts import require_engine
from batonctl.errors import CommandError
from batonctl.progress import counting_progress

if TYPE_CHECKING:
    from engine.choice import Choice
    from engine.kernels.measure import Crossing
    from engine.kernels.tuned_table import TunedTable

_WHAT = "the engine's kernels are not here"


def run_kernels(*, as_json: bool) -> None:
    """Prints one line a case; CommandError without the engine extra."""
    require_engine(_WHAT)
    from engine.kernels.tuned_table import Machine, read_tuned

    machine = Machine.here()
    choices = _choices(tuned := read_tuned())
    if as_json:
        tuned_at = None if tuned is None else tuned.date
        rows = [asdict(choice) for choice in choices]
        print(json.dumps({"machine": asdict(machine), "tuned": tuned_at, "choices": rows}))
        return
    print(f"{machine.cpu}, {machine.capability}, torch {machine.torch}{_gpu()}")
    header = {name: name for name in asdict(choices[0])}
    lines = [header, *(asdict(choice) for choice in choices)]
    widths = {name: max(len(line[name]) for line in lines) for name in header}
    for line in lines:
        print("  ".join(f"{line[name]:<{widths[name]}}" for name in header).rstrip())


def _choices(tuned: "TunedTable | None") -> "list[Choice]":
    import torch

    from engine.attention.select import attention_choices
    from engine.kernels.select import GEMM_TABLE, gemm_choices

    table = GEMM_TABLE if tuned is None else (*tuned.rows(), *GEMM_TABLE)
    choices = [*attention_choices(), *gemm_choices(table)]
    if torch.cuda.is_available():
        from engine.gpu.choices import gpu_choices

        has_flashinfer = find_spec("flashinfer") is not None
        capability = torch.cuda.get_device_capability()
        choices += gpu_choices(capability, has_flashinfer=has_flashinfer)
    return choices


def _gpu() -> str:
    import torch

    if not torch.cuda.is_available():
        return "; no NVIDIA GPU"
    return f"; {torch.cuda.get_device_name()}, with device cuda"


def run_tune(*, as_json: bool) -> None:
    """Measures, writes the table and prints what it says."""
    require_engine(_WHAT)
    import torch

    from engine.kernels.tuned_table import Machine, TunedTable
    from worker.settings import EngineSettings

    threads = EngineSettings().num_threads
    torch.set_num_threads(threads)
    crossings = _measure()
    table = TunedTable(
        machine=Machine.here(),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        threads=threads,
        int4_up_to={crossing.weights: crossing.int4_up_to for crossing in crossings},
    )
    try:
        path = table.write()
    except OSError as error:
        raise CommandError(
            f"cannot write the table: {error}", hint="BATON_KERNEL_DIR names another folder"
        ) from error
    if as_json:
        facts: dict[str, Any] = {"path": str(path), **asdict(table)}
        print(json.dumps({**facts, "measured": [asdict(crossing) for crossing in crossings]}))
        return
    for crossing in crossings:
        print(
            f"{crossing.weights} weights: int4 up to {crossing.int4_up_to} tokens, then dequantize"
        )
        for count, seconds in crossing.int4_seconds.items():
            other = crossing.dequantize_seconds[count]
            print(
                f"  {count:4} tokens  int4 {seconds * 1e3:8.3f} ms  dequantize {other * 1e3:8.3f}"
            )
    print(f"written to {path}")


def _measure() -> "list[Crossing]":
    from engine.kernels.measure import NUM_MEASUREMENTS, SHAPES, measure_crossing

    with counting_progress() as progress:
        task = progress.add_task("measuring", total=NUM_MEASUREMENTS)
        return [
            measure_crossing(kind, shapes, advance=lambda: progress.advance(task))
            for kind, shapes in SHAPES.items()
        ]
