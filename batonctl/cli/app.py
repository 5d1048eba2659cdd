"""`baton`: all commands."""

from typing import Annotated

import typer

from batonctl.cli import ask, kernels, machine, run, trace

app = typer.Typer(
    help="Baton serves large language models from separate prefill and decode services.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"baton {version('baton-serve')}")
        raise typer.Exit


@app.callback()
def _baton(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    pass


app.command()(run.demo)
app.command()(run.up)
app.command()(ask.generate)
app.command()(ask.chat)
app.command()(trace.trace)
app.command()(machine.pull)
app.command()(machine.models)
app.command()(machine.doctor)
app.command()(machine.health)
app.add_typer(kernels.app, name="kernels")
