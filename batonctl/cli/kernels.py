"""Commands about what the engine computes with: kernels, kernels tune, kernels build."""

from typing import Annotated

import typer

from batonctl.cli import flags

app = typer.Typer(
    help="List which kernels run here, and why; measure or build them.",
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def kernels(context: typer.Context, json: flags.Json = False) -> None:
    if context.invoked_subcommand is None:
        from batonctl.kernels import run_kernels

        run_kernels(as_json=json)


@app.command()
def tune(
    model: flags.Model = "smollm2-135m",
    tensor_parallel_size: Annotated[
        int, typer.Option(min=1, metavar="N", help="On a GPU: for one of so many ranks.")
    ] = 1,
    json: flags.Json = False,
) -> None:
    """Measure this machine's choices again; workers started later use them.

    It takes a minute or two with nothing else running. Measured is, up to how many tokens 4-bit and
    8-bit weights are multiplied as they are, on a CPU; on a GPU also, from when on sequences with a
    common start attend to it together, with the heads of a model. Every choice gives right answers.
    """
    from batonctl.kernels import run_tune

    run_tune(model, tensor_parallel_size, as_json=json)


@app.command()
def build(
    model: flags.Model = "smollm2-135m",
    arch: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="For GPUs of these compute capabilities, as 90 or 80,90,100,120. [default: for "
            "this machine's]",
        ),
    ] = None,
    json: flags.Json = False,
) -> None:
    """Compile a model's GPU kernels ahead of time, into the cache that workers read.

    For workers in bfloat16 with the batch and block sizes that they have by default. What it leaves
    out is compiled when a worker starts. Without a GPU and --arch there is nothing to build.
    """
    from batonctl.kernel_build import run_build

    run_build(model, arch, as_json=json)
