"""Liveness answers while the engine computes: busy is not broken."""

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from chassis.channel import open_channel
from chassis.health import SERVING
from tests.e2e.prompts import prompt
from tests.e2e.split_client import SplitClient
from tests.e2e.worker_process import WorkerProcess

READY = "baton.v1.PrefillService"


@pytest.mark.slow
async def test_health_answers_many_times_within_each_step_of_the_longest_prompt(
    client: SplitClient, workers: tuple[WorkerProcess, WorkerProcess]
) -> None:
    """A probe that waited for steps would be answered once a step at most."""
    before = (await client.watch_until("prefill", lambda load: True)).load.steps
    attempt = await client.begin(prompt(2_048, seed=13_000), max_tokens=1, decode_leg=False)
    await client.watch_until("prefill", lambda load: load.running > 0)
    num_answers = 0
    async with open_channel(workers[0].address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        while not attempt.prefilled.is_set():
            for service in ("", READY):
                answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
                assert answer.status == SERVING
                num_answers += 1
    num_steps = (await client.watch_until("prefill", lambda load: True)).load.steps - before
    assert num_steps >= 8
    assert num_answers > 4 * num_steps
