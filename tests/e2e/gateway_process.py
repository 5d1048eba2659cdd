"""A real gateway in front of real workers."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.service_process import ServiceProcess, running_service


@contextmanager
def running_gateway(
    prefill: Sequence[ServiceProcess],
    decode: Sequence[ServiceProcess],
    traces: Path,
    *flags: str,
) -> Iterator[ServiceProcess]:
    """The process, once it can serve."""
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
