"""Workers that most tests share, each a process of its own."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from baton.client import BatonClient
from tests.e2e.engine_reference import Reference
from tests.e2e.gateway_process import running_gateway
from tests.e2e.service_process import ServiceProcess
from tests.e2e.split_client import SplitClient, split_client
from tests.e2e.tiny_model import write_tiny_model
from tests.e2e.worker_process import WorkerProcess, running

POOL = ("--kv-memory-bytes", str(256 << 20))


@pytest.fixture(scope="session")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Its path, which names it."""
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def workers(traces: Path) -> Iterator[tuple[WorkerProcess, WorkerProcess]]:
    with (
        running("prefill", *POOL, trace_directory=traces) as prefill,
        running("decode", *POOL, trace_directory=traces) as decode,
    ):
        yield prefill.wait_ready(), decode.wait_ready()


@pytest.fixture
async def client(workers: tuple[WorkerProcess, WorkerProcess]) -> AsyncIterator[SplitClient]:
    async with split_client(*workers) as client:
        yield client


@pytest.fixture(scope="session")
def reference() -> Reference:
    return Reference()


@pytest.fixture(scope="session")
def gateway_process(
    workers: tuple[WorkerProcess, WorkerProcess], traces: Path
) -> Iterator[ServiceProcess]:
    """A gateway in front of the two."""
    with running_gateway([workers[0]], [workers[1]], traces) as gateway:
        yield gateway


@pytest.fixture(scope="session")
def gateway(gateway_process: ServiceProcess) -> str:
    """Its address."""
    return gateway_process.address


@pytest.fixture
async def baton(gateway: str) -> AsyncIterator[BatonClient]:
    async with BatonClient(gateway) as client:
        yield client
