"""`baton demo`: one question through the whole stack, and where its time went."""

import asyncio
import contextlib
import os
import time
from dataclasses import replace

from batonctl.ask_options import require_utf8
from batonctl.engine_parts import require_engine
from batonctl.errors import CommandError
from batonctl.model_choice import require_model
from batonctl.service_spec import ServiceSpec
from batonctl.stack import Stack
from batonctl.stack_events import Died, StackEvent
from batonctl.stack_plan import StackPlan, on_free_ports

START_TIMEOUT = 120.0
REQUEST_TIMEOUT = 120.0
DRAIN_GRACE = 5.0
TRACE_WAIT = 5.0
MAX_TOKENS = 96
# Settings of the person's own that would send the trace elsewhere or drop it.
_TRACE_SETTINGS = ("OTEL_EXPORTER_OTLP_", "OTEL_TRACES_", "OTEL_SDK_DISABLED")


def run_demo(question: str, model: str) -> None:
    """Runs a stack on free ports for one question; CommandError if any part of it fails."""
    require_engine()
    require_model(model)
    require_utf8(question, "question")
    plan = on_free_ports(model, DRAIN_GRACE)
    services = [_with_local_trace(spec) for spec in plan.services()]
    # The services first: they load while the rest of this command does.
    with Stack(services, drain_grace=DRAIN_GRACE, emit=_report) as stack:
        print(f"Starting a gateway, a prefill and a decode worker with {model} ...", flush=True)
        request_id = asyncio.run(_ask(stack, plan, question))
    if request_id is None:
        print("\nstopped")
        return
    _show_trace(request_id)


async def _ask(stack: Stack, plan: StackPlan, question: str) -> str | None:
    """The id of the answered request; None: interrupted."""
    from batonctl.stop_signals import StopSignals

    conversation = _Question(f"127.0.0.1:{plan.gateway_port}", question)
    with StopSignals() as signals:
        stack.supervise()
        try:
            if await signals.interrupts(stack.wait_ready(START_TIMEOUT)):
                return None
            conversation.stack_ready = _seconds_since_the_command()
            if await signals.interrupts(conversation.stream()):
                return None
        finally:
            await stack.stop(signals.second)
    return conversation.request_id


class _Question:
    def __init__(self, address: str, question: str) -> None:
        self._address = address
        self._question = question
        self.request_id = ""
        # Seconds since the command.
        self.stack_ready = 0.0

    async def stream(self) -> None:
        """Prints the answer as it comes, then what it cost."""
        from baton.client import BatonClient, user
        from batonctl.answer import Answer
        from batonctl.ask_options import AskOptions, SamplingOptions
        from batonctl.ask_stream import stream_answer

        # Greedy: the demo says the same thing every time.
        sampling = SamplingOptions(temperature=0.0, max_tokens=MAX_TOKENS)
        ask = AskOptions(self._address, timeout=REQUEST_TIMEOUT, sampling=sampling)
        answer = Answer()
        first_words = 0.0
        print(f"\n> {self._question}\n", flush=True)
        async with BatonClient(self._address) as client:
            async for piece in stream_answer(client, [user(self._question)], ask):
                answer.add(piece)
                first_words = first_words or _seconds_since_the_command()
                print("".join(delta.text for delta in piece.deltas), end="", flush=True)
        print(f"\n\n{answer.statistics()}")
        shown = f"{first_words:.1f} s after the command"
        print(
            f"first words {shown}, {self.stack_ready:.1f} s of them to start the stack", flush=True
        )
        if answer.summary is None:
            raise CommandError("the answer ended without a summary", hint="report this as a bug")
        self.request_id = answer.summary.request_id


def _show_trace(request_id: str) -> None:
    from batonctl.trace import load_trace, render_waterfall, trace_console

    print()
    # The services have stopped, so all of it is written.
    render_waterfall(load_trace(request_id, wait=TRACE_WAIT), trace_console())
    print("\n`baton up` keeps such a stack running; `baton chat` talks to it.")


def _seconds_since_the_command() -> float:
    """Since the kernel started this process: Python's own start counts for who waits."""
    with open("/proc/self/stat") as file:
        # The name, in parentheses, may hold anything; starttime is the 20th field after it.
        ticks = int(file.read().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def _with_local_trace(spec: ServiceSpec) -> ServiceSpec:
    env = {key: value for key, value in os.environ.items() if not key.startswith(_TRACE_SETTINGS)}
    return replace(spec, env=env)


def _report(event: StackEvent) -> None:
    if isinstance(event, Died):
        from batonctl.stack_view import describe

        with contextlib.suppress(BrokenPipeError):
            print("\n".join(describe(event)))
