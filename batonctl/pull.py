"""`baton pull`: a model into the model store."""

import json
import sys

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from batonctl.service_failure import command_error
from chassis.errors import ServiceError
from chassis.model_store import LocalModel, pull


def run_pull(name: str, *, as_json: bool) -> None:
    """Prints where the model is; CommandError says why it could not be had."""
    try:
        model = _pull_with_progress(name)
    except ServiceError as error:
        raise command_error(error) from error
    if as_json:
        print(json.dumps({"name": model.name, "path": str(model.path)}, ensure_ascii=False))
    else:
        print(f"{model.name} is at {model.path}")


def _pull_with_progress(name: str) -> LocalModel:
    console = Console(file=sys.stderr)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    bars: dict[str, TaskID] = {}
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:

        def show(what: str, done: int, total: int | None) -> None:
            if what not in bars:
                bars[what] = progress.add_task(what, total=total)
            progress.update(bars[what], completed=done, total=total)

        return pull(name, show)
