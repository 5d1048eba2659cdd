"""An engine that never comes back from a step ends its worker, which says where (protocol 5.2)."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from bench.tiny_model import tiny_prompt
from tests.e2e.service_process import ServiceProcess, running_service
from tests.e2e.split_client import SplitClient, is_quiet, split_client
from tests.e2e.tiny_model import POOL
from tests.e2e.worker_process import running

LONG: dict[str, Any] = {"temperature": 0.0, "max_tokens": 30_000, "ignore_eos": True}


@contextmanager
def hanging(role: str, model: str, folder: Path) -> Iterator[ServiceProcess]:
    """A worker that hangs once the folder has a file ``hang``."""
    flags = [
        *POOL,
        "--model",
        model,
        "--dtype",
        "float32",
        "--threads",
        "1",
        # Longer than a busy machine may keep an engine from its step.
        "--stuck-seconds",
        "3",
    ]
    last = [role, str(folder / "hang")]
    traces = {"BATON_TRACE_DIR": str(folder)}
    with running_service("tests.e2e.hanging_worker", *flags, *last, **traces) as worker:
        yield worker


async def stop_talking(client: SplitClient, role: str) -> grpc.StatusCode:
    """How the connection to a worker breaks."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.watch_until(role, lambda load: False)
    return caught.value.code()


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_stuck_engine_breaks_its_streams_and_ends_its_process_with_the_cause(
    role: str, tiny_model: str, tmp_path: Path
) -> None:
    other_role = {"prefill": "decode", "decode": "prefill"}[role]
    with (
        hanging(role, tiny_model, tmp_path) as stuck,
        running(other_role, *POOL, trace_directory=tmp_path, model=tiny_model) as other,
    ):
        stuck.wait_for_log("ready on")
        other.wait_ready()
        pair = {role: stuck, other_role: other}
        async with split_client(pair["prefill"], pair["decode"], outlived=False) as client:
            await client.generate(tiny_prompt(40, seed=1), temperature=0.0, max_tokens=4)
            running_one = await client.begin(tiny_prompt(40, seed=2), **LONG)
            await running_one.stepped.wait()
            (tmp_path / "hang").touch()
            await client.begin(tiny_prompt(40, seed=3), **LONG)
            assert await stop_talking(client, role) == grpc.StatusCode.UNAVAILABLE
            if role == "prefill":
                # What it had handed over already goes on.
                await client.cancel(running_one)
            await client.watch_until(other_role, is_quiet)
        assert await asyncio.to_thread(stuck.wait_exit) == 1
    log = "".join(stuck.log)
    assert "the engine thread is stuck, here:" in log
    assert "in hang_here" in log
    assert "stopping at once: ThreadStuck: the engine thread is stuck for" in log
