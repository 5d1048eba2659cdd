"""What a stack does, and who can reach it, while nobody asks it anything."""

import ipaddress
import time
from pathlib import Path

import psutil
import pytest

from baton.client import BatonClient
from tests.e2e.prompts import prompt
from tests.e2e.service_process import ServiceProcess
from tests.e2e.split_client import split_client
from tests.e2e.worker_process import WorkerProcess

IDLE_SECONDS = 4.0
# What is done for nothing takes longer while the machine is busy: so often may it be looked again.
MOST_LOOKS = 5
MAX_CORES = 0.05
# Bytes of KV have moved, so every connection and every endpoint of the transport is open.
LENGTHS = (300, 40)


@pytest.fixture
async def services(
    gateway_process: ServiceProcess,
    workers: tuple[WorkerProcess, WorkerProcess],
) -> dict[str, ServiceProcess]:
    """The three processes, after they have worked."""
    async with BatonClient(gateway_process.address) as client, split_client(*workers) as watcher:
        for length in LENGTHS:
            await client.generate(prompt(length, seed=length), max_tokens=4, temperature=0)
        await watcher.all_blocks_back()
    return {"gateway": gateway_process, "prefill": workers[0], "decode": workers[1]}


def family(service: ServiceProcess) -> list[psutil.Process]:
    process = psutil.Process(service.pid)
    return [process, *process.children(recursive=True)]


def cpu_seconds(services: dict[str, ServiceProcess]) -> dict[str, float]:
    used = {}
    for name, service in services.items():
        times = [process.cpu_times() for process in family(service)]
        used[name] = sum(each.user + each.system for each in times)
    return used


def test_an_idle_stack_uses_less_than_a_twentieth_of_a_core(
    services: dict[str, ServiceProcess],
) -> None:
    looks: list[dict[str, float]] = []
    while len(looks) < MOST_LOOKS and not any(sum(each.values()) < MAX_CORES for each in looks):
        before = cpu_seconds(services)
        time.sleep(IDLE_SECONDS)
        after = cpu_seconds(services)
        looks.append({name: (after[name] - before[name]) / IDLE_SECONDS for name in services})
    assert sum(looks[-1].values()) < MAX_CORES, looks


def is_loopback(address: str) -> bool:
    parsed = ipaddress.ip_address(address)
    # Sockets for both families show IPv4 peers as ::ffff:127.0.0.1.
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback


def test_nothing_listens_or_talks_off_loopback(services: dict[str, ServiceProcess]) -> None:
    listening = set()
    for service in services.values():
        for process in family(service):
            for connection in process.net_connections("inet"):
                for end in (connection.laddr, connection.raddr):
                    assert not end or is_loopback(end.ip), connection
                if connection.status == psutil.CONN_LISTEN:
                    listening.add(connection.laddr.port)
    for service in services.values():
        assert {service.port, service.metrics_port} <= listening


def test_the_gateway_has_not_loaded_torch(services: dict[str, ServiceProcess]) -> None:
    with_torch = {
        name
        for name, service in services.items()
        if "libtorch" in Path(f"/proc/{service.pid}/maps").read_text()
    }
    assert with_torch == {"prefill", "decode"}
