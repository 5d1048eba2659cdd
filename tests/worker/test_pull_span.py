"""The span of a pull tells what has arrived, also where nothing came of it."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chassis import telemetry
from engine.batch import ModelRunnerOutput, SchedulerOutput
from engine.model_runner import ModelRunner
from tests.chassis.trace_file import facts, written
from tests.kvtransfer.stage import until
from tests.worker.pair import ENGINE, WorkerPair, worker_pair

CHUNK_BLOCKS = ENGINE.max_num_batched_tokens // ENGINE.block_size
TWO_CHUNKS = [5] * (ENGINE.max_num_batched_tokens + 3)
ANSWER: dict[str, Any] = {"max_tokens": 8, "ignore_eos": True}


@pytest.fixture
def tracing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.setenv("BATON_TRACE_DIR", str(tmp_path))
    telemetry.setup("decode")
    yield tmp_path
    telemetry.shutdown()


class BrokenStep:
    """Prefill's second step waits until it is told to fail."""

    def __init__(self, runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_fail = threading.Event()
        self._run = runner.run
        self._steps = 0
        monkeypatch.setattr(runner, "run", self._step)

    def _step(self, output: SchedulerOutput) -> ModelRunnerOutput:
        self._steps += 1
        if self._steps == 2:
            self.may_fail.wait()
            raise RuntimeError("broken")
        return self._run(output)


def pull_span(tracing: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Attributes of the last pull's span, and of its events."""
    spans = [span for span in written(tracing) if span["name"] == "kv.pull"]
    events = spans[-1].get("events", [])
    return facts(spans[-1]["attributes"]), [facts(event["attributes"]) for event in events]


def bytes_read(pair: WorkerPair) -> float:
    registry = pair.parts["decode"].metrics.registry
    labels = {"transport": "local"}
    return registry.get_sample_value("baton_kv_transfer_bytes_total", labels) or 0.0


async def test_of_a_pull_that_failed_half_way(
    tiny_model: Path, tracing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with worker_pair(tiny_model) as pair:
        broken = BrokenStep(pair.parts["prefill"].model.runner, monkeypatch)
        transfers = pair.parts["decode"].transfers
        attempt = await pair.client.begin(TWO_CHUNKS, **ANSWER)
        arrived = CHUNK_BLOCKS * transfers.block_bytes
        await until(lambda: bytes_read(pair) == arrived)
        broken.may_fail.set()
        assert (await attempt.outcome()).failure.reason == "STEP_FAILED"
        await pair.client.all_blocks_back()
    attributes, chunks = pull_span(tracing)
    assert attributes["error.type"] == "STEP_FAILED"
    assert [int(chunk["baton.bytes"]) for chunk in chunks] == [arrived]
    assert int(attributes["baton.bytes"]) == arrived
    assert int(attributes["baton.blocks"]) == CHUNK_BLOCKS
    assert int(attributes["baton.fenced_blocks"]) == 0


async def test_of_a_pull_that_was_given_up_while_it_read(tiny_model: Path, tracing: Path) -> None:
    async with worker_pair(tiny_model) as pair:
        await pair.client.generate([6] * 4, **ANSWER)
        before = bytes_read(pair)
        pair.fabric.held = True
        attempt = await pair.client.begin(TWO_CHUNKS, **ANSWER)
        transfers = pair.parts["decode"].transfers
        await until(lambda: transfers.num_blocks_in_flight == CHUNK_BLOCKS + 1)
        await pair.client.cancel(attempt)
        await attempt.finished
        pair.fabric.held = False
        await pair.client.all_blocks_back()
        # What was being read still came.
        assert bytes_read(pair) == before + (CHUNK_BLOCKS + 1) * transfers.block_bytes
    attributes, chunks = pull_span(tracing)
    assert attributes["error.type"] == "CANCELLED"
    assert chunks == []
    assert (int(attributes["baton.bytes"]), int(attributes["baton.blocks"])) == (0, 0)
    assert int(attributes["baton.fenced_blocks"]) == CHUNK_BLOCKS + 1
