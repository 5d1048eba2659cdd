"""Several gateway processes behave as one service."""

import re
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import grpc
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from baton.v1 import gateway_pb2_grpc
from chassis.channel import PUBLIC, channel_options
from tests.e2e.service_process import ServiceProcess, running_service
from tests.gateway.stage import request

# Nobody listens there: every request is answered UNAVAILABLE, which is all these tests need.
NOWHERE = ("--prefill-addresses", "127.0.0.1:1", "--decode-addresses", "127.0.0.1:1")


@pytest.fixture
def gateway() -> Iterator[ServiceProcess]:
    with running_service("gateway", "--workers", "2", *NOWHERE) as process:
        process.wait_for_log("live on", times=2)
        yield process


def ask(gateway: ServiceProcess) -> grpc.StatusCode:
    """The outcome of one request on a connection of its own."""
    with grpc.insecure_channel(gateway.address, options=channel_options(PUBLIC)) as channel:
        stub = gateway_pb2_grpc.GenerationServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.Generate(request(), timeout=30)
    code: grpc.StatusCode = caught.value.code()
    return code


def num_unavailable(gateway: ServiceProcess) -> float:
    url = f"http://127.0.0.1:{gateway.metrics_port}/metrics"
    with urllib.request.urlopen(url, timeout=10) as page:
        families = text_string_to_metric_families(page.read().decode())
    return sum(
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == "baton_requests_total" and sample.labels["code"] == "UNAVAILABLE"
    )


def pids(gateway: ServiceProcess) -> list[int]:
    lines = gateway.wait_for_log("started")
    return [int(found[1]) for line in lines if (found := re.search(r"process (\d+) started", line))]


def test_processes_share_a_port_and_a_metrics_page(gateway: ServiceProcess) -> None:
    asked = [ask(gateway) for _ in range(12)]
    assert asked == [grpc.StatusCode.UNAVAILABLE] * 12
    assert num_unavailable(gateway) == 12


def test_a_process_that_dies_is_replaced_and_nothing_is_forgotten(gateway: ServiceProcess) -> None:
    asked = [ask(gateway) for _ in range(6)]
    psutil.Process(pids(gateway)[0]).kill()
    gateway.wait_for_log("live on", times=3)
    asked += [ask(gateway) for _ in range(6)]
    assert asked == [grpc.StatusCode.UNAVAILABLE] * 12
    assert num_unavailable(gateway) == 12
    assert len(set(pids(gateway))) == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all_processes(gateway: ServiceProcess, number: signal.Signals) -> None:
    gateway.signal(number)
    assert gateway.wait_exit() == 0
    assert not any(psutil.pid_exists(pid) for pid in pids(gateway))


def test_processes_do_not_outlive_a_killed_supervisor(gateway: ServiceProcess) -> None:
    children = [psutil.Process(pid) for pid in pids(gateway)]
    gateway.signal(signal.SIGKILL)
    gateway.wait_exit()
    _gone, alive = psutil.wait_procs(children, timeout=30)
    assert not alive


def test_what_a_killed_supervisor_leaves_in_the_temporary_folder_goes_with_the_next_one(
    tmp_path: Path,
) -> None:
    def folders() -> set[Path]:
        return set(tmp_path.glob("baton-metrics-*"))

    def supervised() -> AbstractContextManager[ServiceProcess]:
        return running_service("gateway", "--workers", "2", *NOWHERE, TMPDIR=str(tmp_path))

    with supervised() as killed, supervised() as living:
        for each in (killed, living):
            each.wait_for_log("live on", times=2)
        both = folders()
        assert len(both) == 2
        killed.signal(signal.SIGKILL)
        killed.wait_exit()
        assert folders() == both
        with supervised() as successor:
            successor.wait_for_log("live on")
            assert len(folders()) == 2 and len(folders() & both) == 1
        assert num_unavailable(living) == 0
        living.terminate()
        assert living.wait_exit() == 0


def test_a_taken_port_is_refused() -> None:
    with running_service("gateway", *NOWHERE) as first:
        first.wait_for_log("live on")
        port = ("--port", str(first.port))
        with running_service("gateway", "--workers", "2", *port, *NOWHERE) as second:
            assert second.wait_exit() == 1
            assert f"cannot listen on {first.address}" in "".join(second.log)


def test_a_model_that_is_not_there_stops_the_start() -> None:
    with running_service("gateway", "--workers", "2", "--model", "nobody", *NOWHERE) as process:
        assert process.wait_exit() == 1
        assert "no model 'nobody' here" in "".join(process.log)
