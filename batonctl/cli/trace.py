"""The command that shows traces."""

from pathlib import Path
from typing import Annotated

import typer


def trace(
    request_id: Annotated[
        str | None,
        typer.Argument(
            metavar="REQUEST_ID", help="Id of the request (x-request-id), or its first digits."
        ),
    ] = None,
    last: Annotated[
        bool, typer.Option("--last", help="The latest request; so without an id.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a self-contained page instead.")
    ] = None,
) -> None:
    """Show where the time of a request went, stage by stage."""
    from batonctl.errors import InputError
    from batonctl.trace import run_trace

    if last and request_id is not None:
        raise InputError("give a request id or --last, not both")
    run_trace(request_id, html)
