"""A real gateway in front of real workers."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.worker_process import WorkerProcess
from tests.gateway.service_process import running


@contextmanager
def gateway_for(
    prefill: Sequence[WorkerProcess],
    decode: Sequence[WorkerProcess],
    traces: Path,
    *flags: str,
) -> Iterator[str]:
    """Its address, once it can serve."""
    peers = ["--prefill-addresses", ",".join(worker.address for worker in prefill)]
    peers += ["--decode-addresses", ",".join(worker.address for worker in decode)]
    with running("gateway", *peers, *flags, BATON_TRACE_DIR=str(traces)) as gateway:
        gateway.wait_for_log("ready on")
        yield gateway.address
