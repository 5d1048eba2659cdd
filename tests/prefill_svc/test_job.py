"""The spans of a prompt, however it ends."""

from collections.abc import Callable
from pathlib import Path

import pytest

from chassis import telemetry
from chassis.errors import Cancelled, ServiceError
from engine.batch import Sample
from engine.request import Request
from engine.sampling_params import SamplingParams
from prefill_svc.job import FirstToken, PrefillJob
from prefill_svc.prompt import Prompt

LEFT = Cancelled("the call has ended", reason="PREFILL_ENDED")


def queued(job: PrefillJob) -> None:
    pass


def computing(job: PrefillJob) -> None:
    job.begin()


def computed(job: PrefillJob) -> None:
    job.begin()
    job.answer((FirstToken(Sample(0, 7), None),))


@pytest.mark.parametrize(
    ("state", "error"),
    [
        pytest.param(queued, LEFT, id="left-the-queue"),
        pytest.param(computing, LEFT, id="left-while-computing"),
        pytest.param(computed, LEFT, id="left-before-the-release"),
        pytest.param(computed, None, id="released"),
    ],
)
async def test_no_span_is_touched_after_its_end(
    state: Callable[[PrefillJob], None],
    error: ServiceError | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("BATON_TRACE_DIR", str(tmp_path))
    telemetry.setup("prefill")
    try:
        request = Request("a", [1, 2], 2, SamplingParams())
        job = PrefillJob(Prompt(b"a" * 16, request, hand_off=True), None)
        state(job)
        job.end(error)
    finally:
        telemetry.shutdown()
    assert [record.getMessage() for record in caplog.records] == []
