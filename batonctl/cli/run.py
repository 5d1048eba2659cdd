"""Commands that run services: up, demo."""

from enum import StrEnum
from typing import Annotated

import typer

from batonctl.cli.flags import Model


class Dtype(StrEnum):
    """Element types of activations and KV."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class Quantization(StrEnum):
    """How weights are kept."""

    NONE = "none"
    Q4 = "q4"


Workers = Annotated[
    int, typer.Option(min=1, max=64, metavar="N", help="Number of workers of this role.")
]
Port = Annotated[
    int,
    typer.Option(
        min=1, max=64535, metavar="PORT", help="Of the first one; metrics are 1000 above."
    ),
]
AnyDtype = Annotated[
    Dtype | None,
    typer.Option(help="Of activations and KV. [default: bfloat16 if the device multiplies it]"),
]
AnyQuantization = Annotated[
    Quantization | None, typer.Option(help="q4 keeps 4-bit weights 4-bit. [default: none]")
]
TensorParallelSize = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Processes that divide each worker's model, on a GPU each. [default: 1]",
    ),
]
RoleTensorParallelSize = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="The same for workers of this role. [default: --tensor-parallel-size]",
    ),
]
DrainGrace = Annotated[
    float,
    typer.Option(min=0, metavar="SECONDS", help="What running requests get to end."),
]
StartTimeout = Annotated[
    float, typer.Option(min=0, metavar="SECONDS", help="What the services get to be ready.")
]


def up(
    model: Model = "smollm2-135m",
    prefill_workers: Workers = 1,
    decode_workers: Workers = 1,
    dtype: AnyDtype = None,
    quantization: AnyQuantization = None,
    tensor_parallel_size: TensorParallelSize = None,
    prefill_tensor_parallel_size: RoleTensorParallelSize = None,
    decode_tensor_parallel_size: RoleTensorParallelSize = None,
    gateway_port: Port = 7100,
    prefill_port: Port = 7110,
    decode_port: Port = 7120,
    drain_grace: DrainGrace = 30.0,
    start_timeout: StartTimeout = 300.0,
    logs: Annotated[
        bool | None,
        typer.Option(
            "--logs/--no-logs", help="Show the services' logs. [default: off in a terminal]"
        ),
    ] = None,
) -> None:
    """Run a gateway and its workers; Ctrl-C drains and stops.

    Further settings of the services come from their environment, for example
    BATON_PREFILL_KV_MEMORY_BYTES; `python -m prefill_svc --help` lists them.
    """
    from batonctl.gpus import visible_gpus
    from batonctl.stack_plan import StackPlan
    from batonctl.up import UpOptions, run_up

    plan = StackPlan(
        model=model,
        prefill_workers=prefill_workers,
        decode_workers=decode_workers,
        dtype=dtype,
        quantization=quantization,
        prefill_tensor_parallel_size=prefill_tensor_parallel_size or tensor_parallel_size,
        decode_tensor_parallel_size=decode_tensor_parallel_size or tensor_parallel_size,
        gateway_port=gateway_port,
        prefill_port=prefill_port,
        decode_port=decode_port,
        drain_grace=drain_grace,
        gpus=tuple(visible_gpus()),
    )
    run_up(UpOptions(plan=plan, start_timeout=start_timeout, logs=logs))


def demo(
    question: Annotated[
        str, typer.Argument(metavar="QUESTION", help="What to ask.")
    ] = "Why is the sky blue? Answer in one or two sentences.",
    model: Model = "smollm2-135m",
) -> None:
    """Ask a whole stack one question; show where the time went."""
    from batonctl.demo import run_demo

    run_demo(question, model)
