"""Commands about what the engine computes with: kernels, kernels tune."""

import typer

from batonctl.cli import flags

app = typer.Typer(
    help="List which kernels run here, and why; measure them again.",
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def kernels(context: typer.Context, json: flags.Json = False) -> None:
    if context.invoked_subcommand is None:
        from batonctl.kernels import run_kernels

        run_kernels(as_json=json)


@app.command()
def tune(json: flags.Json = False) -> None:
    """Measure this machine's choices again; workers started later use them.

    It takes a minute or two with nothing else running. Measured is, up to how many tokens 4-bit and
    8-bit weights are multiplied as they are, on a CPU. Every choice gives right answers.
    """
    from batonctl.kernels import run_tune

    run_tune(as_json=json)
