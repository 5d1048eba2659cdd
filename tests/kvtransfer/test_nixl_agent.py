"""What agents do to their process and their machine, seen in processes of their own."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

REFUSED = """
import torch
from kvtransfer.errors import TransportUnavailable
from kvtransfer.transport.nixl import NixlTransport
try:
    NixlTransport(torch.zeros(8, 1024), "agent")
except TransportUnavailable as error:
    print("refused:", error)
"""

# Two agents move a block and then rest. Sockets that listen are hexadecimal address:port.
REPORT = """
import json, os, threading, time, torch
from kvtransfer.transfer_thread import TransferThread
from kvtransfer.transport.nixl import NixlTransport
from kvtransfer.transport.ranked import RemoteRank

ours, theirs = (TransferThread([NixlTransport(torch.zeros(8, 1024), name)]) for name in "ab")
ours.start()
theirs.start()
theirs.hold()
ours.connect("b", [RemoteRank(theirs.metadata[0], 4096)]).result(20)
ours.read("b", [1], [1]).done.result(20)

links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
sockets = {os.readlink(link) for link in links if os.path.lexists(link)}
rows = [row.split() for table in ("tcp", "tcp6") for row in open(f"/proc/net/{table}")]
listeners = [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets]

theirs.release()
while theirs.polling or ours.polling:
    os.sched_yield()
before = time.process_time()
threading.Event().wait(1.0)
print(json.dumps({"listeners": listeners, "idle_seconds": time.process_time() - before}))
ours.stop()
theirs.stop()
"""


def run(script: str, **environment: str) -> str:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("UCX_")}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**clean, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def output() -> str:
    return run(REPORT)


@pytest.fixture
def report(output: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    "environment",
    [{"UCX_TLS": "nonexistent"}, {"UCX_NET_DEVICES": "nonexistent0"}],
    ids=["no transport", "no device"],
)
def test_an_agent_that_cannot_move_blocks_is_refused(environment: dict[str, str]) -> None:
    output = run(REFUSED, **environment)
    # UCX itself prints to standard output, too.
    (refusal,) = [line for line in output.splitlines() if line.startswith("refused:")]
    assert "NIXL cannot move blocks here" in refusal
    assert next(iter(environment)) in refusal


def test_nothing_listens_off_loopback(report: dict[str, Any]) -> None:
    assert report["listeners"], "UCX over TCP listens; this test must see that"
    assert all(address.startswith("0100007F:") for address in report["listeners"])


def test_idle_agents_cost_nothing(report: dict[str, Any]) -> None:
    assert report["idle_seconds"] < 0.02


def test_agents_print_nothing(output: str) -> None:
    assert len(output.splitlines()) == 1
