"""Commands about this machine and what it holds: pull, models, doctor, health."""

from typing import Annotated

import typer

from batonctl.cli import flags


def pull(
    model: Annotated[str, typer.Argument(help=flags.MODEL_HELP)] = "smollm2-135m",
    json: flags.Json = False,
) -> None:
    """Download a model into the model store, or check that it is there."""
    from batonctl.pull import run_pull

    run_pull(model, as_json=json)


def models(json: flags.Json = False) -> None:
    """List the models that can be pulled by name, and those in the model store."""
    from batonctl.models import run_models

    run_models(as_json=json)


def doctor(
    address: Annotated[
        str | None,
        typer.Option(
            envvar="BATON_ADDRESS",
            help="Gateway of a stack that must run. [default: 127.0.0.1:7100 if one runs there]",
        ),
    ] = None,
    worker: Annotated[
        list[str] | None,
        typer.Option(help="Worker of that stack, host:port; repeatable. [default: those of `up`]"),
    ] = None,
    model: flags.Model = "smollm2-135m",
    json: flags.Json = False,
) -> None:
    """Check the machine, the ports, the transport and a running stack; say how to fix them.

    Exits 1 if a check failed.
    """
    from batonctl.doctor import run_doctor

    run_doctor(address, worker or (), model, as_json=json)


def health(
    address: flags.Address = flags.DEFAULT_ADDRESS,
    service: Annotated[
        str, typer.Option(help="Full proto name; empty: whether the process lives.")
    ] = "",
    timeout: flags.Timeout = 2.0,
) -> None:
    """Ask a service for its health: exits 0 if it is SERVING, 3 otherwise. For health checks."""
    from batonctl.health import run_health

    run_health(address, service, timeout)
