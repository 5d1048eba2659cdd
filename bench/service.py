"""A service of a benchmark, to which things may be done."""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from batonctl.child import Child
from batonctl.member import describe_exit
from batonctl.ports import LOOPBACK, METRICS_OFFSET
from batonctl.service_spec import Role

_MODULES = {Role.GATEWAY: "gateway", Role.PREFILL: "prefill_svc", Role.DECODE: "decode_svc"}
# A start takes seconds of CPU, and everything else wants it as well.
PATIENCE = 120.0


class Service:
    """One process after the other, each at one of the addresses that its peers know.

    ``troubles`` lists what no fault of ours explains: an end by itself, a traceback in the log.
    """

    def __init__(
        self,
        role: Role,
        index: int,
        ports: Sequence[int],
        flags: Sequence[str],
        folder: Path,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Its log goes to a file in ``folder``; ``environment`` is added to ours."""
        self.role = role
        self.name = f"{role}-{index}"
        self.addresses = [f"{LOOPBACK}:{port}" for port in ports]
        self.troubles: list[str] = []
        self._ports = ports
        self._place = 0
        self._flags = flags
        self._folder = folder
        self._environment = environment
        self._log = (folder / f"{self.name}.log").open("a", buffering=1)
        self._ready = asyncio.Event()
        self._expected_code: int | None = None
        self._child: Child | None = None
        self._running: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """Where it is now."""
        return self.addresses[self._place]

    @property
    def page(self) -> str:
        """URL of its metrics."""
        return f"http://{LOOPBACK}:{self._ports[self._place] + METRICS_OFFSET}/metrics"

    @property
    def pid(self) -> int:
        """Of the process that runs."""
        assert self._child is not None, f"{self.name} does not run"
        return self._child.pid

    @property
    def is_ready(self) -> bool:
        """Whether it was, when it last said anything of that."""
        return self._ready.is_set()

    def start(self) -> None:
        """Begins a process where the last one was."""
        assert self._child is None, f"{self.name} runs"
        self._ready.clear()
        self._expected_code = None
        port = self._ports[self._place]
        ports = [f"--port={port}", f"--metrics-port={port + METRICS_OFFSET}"]
        command = [sys.executable, "-P", "-m", _MODULES[self.role], *ports, *self._flags]
        traces = str(self._folder / "traces")
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "BATON_TRACE_DIR": traces,
            **self._environment,
        }
        self._child = Child(command, environment)
        self._log.write(f"---- {self.address}, process {self.pid}\n")
        self._running = asyncio.create_task(self._watch(self._child))

    def move(self) -> None:
        """The next process goes to another address."""
        self._place = (self._place + 1) % len(self._ports)

    async def wait_ready(self) -> None:
        """Raises TimeoutError."""
        async with asyncio.timeout(PATIENCE):
            await self._ready.wait()

    async def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        await self._end(signal.SIGKILL, -signal.SIGKILL)

    async def drain(self) -> None:
        """SIGTERM; returns when it has left. Raises TimeoutError."""
        await self._end(signal.SIGTERM, 0)

    async def freeze(self, seconds: float) -> None:
        """SIGSTOP for so long."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            os.kill(self.pid, signal.SIGCONT)

    async def end(self) -> None:
        """Ends it for good."""
        if self._child is not None:
            await self.kill()
        self._log.close()

    def num_descriptors(self) -> int:
        """Files and connections that it has open."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    async def _end(self, number: signal.Signals, expected_code: int) -> None:
        assert self._running is not None, f"{self.name} does not run"
        self._expected_code = expected_code
        os.kill(self.pid, number)
        async with asyncio.timeout(PATIENCE):
            await asyncio.shield(self._running)

    async def _watch(self, child: Child) -> None:
        code = await child.wait(self._on_line)
        self._child = None
        if code != self._expected_code:
            self._note(f"ended: {describe_exit(code)}")

    def _on_line(self, line: str) -> None:
        self._log.write(line + "\n")
        if "ready on" in line:
            self._ready.set()
        if "Traceback (most recent call last)" in line:
            self._note("a traceback in its log")

    def _note(self, trouble: str) -> None:
        self.troubles.append(f"{self.name} at {self.address}: {trouble}")
