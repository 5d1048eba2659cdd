"""`baton kernels`: what the engine runs on this machine, and why."""

import datetime
import json
from dataclasses import asdict
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from batonctl.engine_parts import require_engine
from batonctl.errors import CommandError
from batonctl.kernel_build import model_config
from batonctl.progress import counting_progress

if TYPE_CHECKING:
    from engine.attention.cascade_table import CascadeRow
    from engine.choice import Choice
    from engine.config import ModelConfig
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
        from engine.attention.cascade_table import cascade_rows
        from engine.gpu.choices import gpu_choices

        choices += gpu_choices(
            torch.cuda.get_device_capability(),
            has_flashinfer=find_spec("flashinfer") is not None,
            cascades=cascade_rows(torch.cuda.get_device_name()),
        )
    return choices


def _gpu() -> str:
    import torch

    if not torch.cuda.is_available():
        return "; no NVIDIA GPU"
    return f"; {torch.cuda.get_device_name()}, with device cuda"


def run_tune(model: str, num_ranks: int, *, as_json: bool) -> None:
    """Measures, writes the tables and prints what they say; on a GPU, where there is one, with the
    heads that one of ``num_ranks`` ranks of ``model`` has."""
    require_engine(_WHAT)
    import torch

    from engine.attention.cascade_table import write_cascade
    from engine.kernels.tuned_table import Machine, TunedTable
    from worker.settings import EngineSettings

    config = _rank_config(model, num_ranks) if torch.cuda.is_available() else None
    threads = EngineSettings().num_threads
    torch.set_num_threads(threads)
    crossings = _measure()
    table = TunedTable(
        machine=Machine.here(),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        threads=threads,
        int4_up_to={crossing.weights: crossing.int4_up_to for crossing in crossings},
    )
    row = None if config is None else _measure_cascade(config)
    try:
        path = table.write()
        row_path = None if row is None else write_cascade(row)
    except OSError as error:
        raise CommandError(
            f"cannot write the table: {error}", hint="BATON_KERNEL_DIR names another folder"
        ) from error
    if as_json:
        facts: dict[str, Any] = {"path": str(path), **asdict(table)}
        facts["cascade"] = None if row is None else {"path": str(row_path), **asdict(row)}
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
    if row is not None:
        pairs = row.least_tokens or "no numbers"
        print(f"decode attention together from {pairs} of sequences and shared tokens on")
    print("written to", *filter(None, (path, row_path)))


def _measure() -> "list[Crossing]":
    from engine.kernels.measure import NUM_MEASUREMENTS, SHAPES, measure_crossing

    with counting_progress() as progress:
        task = progress.add_task("measuring", total=NUM_MEASUREMENTS)
        return [
            measure_crossing(kind, shapes, advance=lambda: progress.advance(task))
            for kind, shapes in SHAPES.items()
        ]


def _rank_config(model: str, num_ranks: int) -> "ModelConfig":
    from engine.errors import ConfigurationError
    from engine.parallel.sharding import shard_config

    try:
        return shard_config(model_config(model), num_ranks)
    except ConfigurationError as error:
        raise CommandError(str(error)) from error


def _measure_cascade(config: "ModelConfig") -> "CascadeRow":
    import torch

    from engine.attention.cascade_table import CascadeHeads
    from engine.gpu.cascade_measure import CascadePool, fit_row, measure_cascade

    heads = CascadeHeads.of_model(config)
    with torch.inference_mode(), counting_progress() as progress:
        pool = CascadePool(heads)
        task = progress.add_task("measuring the GPU", total=len(pool.points()))
        times = list(measure_cascade(pool, lambda: progress.advance(task)))
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return fit_row(times, heads, torch.cuda.get_device_name(), f"measured here on {today}")
