"""A real gateway in front of real workers."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from baton.client import BatonClient
from tests.e2e.service_process import ServiceProcess, running_service

PATIENCE = 120.0


@contextmanager
def running_gateway(
    prefill: Sequence[ServiceProcess],
    decode: Sequence[ServiceProcess],
    traces: Path,
    *flags: str,
) -> Iterator[ServiceProcess]:
    """The process, once it can serve: with one pair of workers, not yet with all of them."""
    peers = ["--prefill-addresses", ",".join(worker.address for worker in prefill)]
    peers += ["--decode-addresses", ",".join(worker.address for worker in decode)]
    with running_service("gateway", *peers, *flags, BATON_TRACE_DIR=str(traces)) as gateway:
        gateway.wait_for_log("ready on")
        yield gateway


@contextmanager
def gateway_for(
    prefill: Sequence[ServiceProcess],
    decode: Sequence[ServiceProcess],
    traces: Path,
    *flags: str,
) -> Iterator[str]:
    """Its address, once it can serve."""
    with running_gateway(prefill, decode, traces, *flags) as gateway:
        yield gateway.address


async def until_counted(client: BatonClient, **expected: int) -> None:
    """Returns once the gateway counts so many ready workers of each of these roles."""
    async with asyncio.timeout(PATIENCE):
        while True:
            (model,) = await client.models()
            if {role: getattr(model, f"{role}_workers") for role in expected} == expected:
                return
            await asyncio.sleep(0.05)
