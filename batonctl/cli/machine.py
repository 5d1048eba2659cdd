"""Commands about this machine and what it holds: pull, models, doctor, health."""

from typing import Annotated

import typer

from batonctl.address import require_address
from batonctl.cli import flags


def pull(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=flags.MODEL_HELP)] = "smollm2-135m",
    json: flags.Json = False,
) -> None:
    """Download a model, or check that it is there."""
    from batonctl.pull import run_pull

    run_pull(model, as_json=json)


def models(json: flags.Json = False) -> None:
    """List the models that are here or can be pulled by name."""
    from batonctl.models import run_models

    run_models(as_json=json)


def doctor(
    address: Annotated[
        str | None,
        typer.Option(
            envvar="BATON_ADDRESS",
            parser=require_address,
            metavar=flags.HOST_PORT,
            help="Gateway of a stack that must run. [default: 127.0.0.1:7100 if one runs there]",
        ),
    ] = None,
    worker: Annotated[
        list[str] | None,
        typer.Option(
            parser=require_address,
            metavar=flags.HOST_PORT,
            help="Worker of that stack; repeatable. [default: those of `up`]",
        ),
    ] = None,
    model: flags.Model = "smollm2-135m",
    json: flags.Json = False,
) -> None:
    """Check machine and stack; say how to fix what is wrong.

    Python, cores, memory, installed parts, ports, the model, the transport, then the services of a
    running stack and a request through it. Exits 1 if a check failed.
    """
    from batonctl.doctor import run_doctor

    run_doctor(address, worker or (), model, as_json=json)


def health(
    address: Annotated[
        str,
        typer.Option(
            envvar="BATON_ADDRESS",
            parser=require_address,
            metavar=flags.HOST_PORT,
            help="Service to ask.",
        ),
    ] = flags.DEFAULT_ADDRESS,
    service: Annotated[
        str,
        typer.Option(metavar="NAME", help="Full proto name; empty: whether the process lives."),
    ] = "",
    timeout: flags.Timeout = 2.0,
) -> None:
    """Ask a service for its health; a probe for containers.

    Exits 0 if the answer is SERVING, 3 otherwise.
    """
    from batonctl.health import run_health

    run_health(address, service, timeout)
