"""`baton up`: the whole stack in the foreground."""

import asyncio
import contextlib
from dataclasses import dataclass

from rich.console import Console

from batonctl.engine_parts import require_engine
from batonctl.model_choice import require_model
from batonctl.stack import Stack
from batonctl.stack_plan import StackPlan
from batonctl.stack_view import StackView, open_view
from batonctl.stop_signals import StopSignals


@dataclass(frozen=True, slots=True)
class UpOptions:
    """What `baton up` was asked for; `logs` None: as it suits the terminal."""

    plan: StackPlan
    start_timeout: float
    logs: bool | None


def run_up(options: UpOptions) -> None:
    """Runs until a signal, then drains; CommandError if the stack does not get ready."""
    require_engine()
    require_model(options.plan.model)
    options.plan.check_ports()
    view = open_view(Console(), logs=options.logs)
    with (
        contextlib.closing(view),
        Stack(
            options.plan.services(), drain_grace=options.plan.drain_grace, emit=view.show
        ) as stack,
    ):
        asyncio.run(_serve(stack, view, options))


async def _serve(stack: Stack, view: StackView, options: UpOptions) -> None:
    with StopSignals() as signals:
        stack.supervise()
        view.attach(stack.members)
        try:
            if not await signals.interrupts(stack.wait_ready(options.start_timeout)):
                port = options.plan.gateway_port
                view.say(f"ready at 127.0.0.1:{port}; Ctrl-C drains and stops")
                view.say(f"try: baton generate 'The sky is' --address 127.0.0.1:{port}")
                await signals.first.wait()
            view.say("draining; Ctrl-C again stops at once")
        finally:
            await stack.stop(signals.second)
    view.say("stopped")
