"""Client processes, from where they are started."""

import asyncio
import json
import sys
from typing import Self

from bench.load.outcome import Outcome
from bench.load.stack import give_way


class ClientProcess:
    """``python -m bench.load.client``; its options are the command line's."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, kind: str, address: str, **options: object) -> Self:
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        flags = [flag.removesuffix("=True") for flag in flags]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.load.client", kind, address, *flags),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        if kind == "streams":
            # They stand for clients on other machines; a refusal is measured by its own client.
            give_way(process.pid)
        return cls(process)

    async def outcome(self, *, stop: bool) -> Outcome:
        """Waits for its end, where ``stop`` is not set for its own."""
        # Open until the end, or the process would take itself for stopped.
        told, self._process.stdin = self._process.stdin, None
        assert told is not None, "its input is a pipe"
        if stop:
            told.close()
        output, _ = await self._process.communicate()
        told.close()
        return Outcome(**json.loads(output))

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
