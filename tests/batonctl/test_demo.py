"""`baton demo`: what a new user sees first."""

import re

import pytest

from tests.batonctl.command import baton

STAGES = (
    "GenerateStream",
    "tokenize",
    "admission.wait",
    "route",
    "prefill leg",
    "prefill.queue",
    "prefill.compute",
    "decode leg",
    "decode.queue",
    "kv.pull",
    "decode.generate",
)


@pytest.mark.slow
def test_demo_answers_and_shows_where_the_time_went() -> None:
    # A person's own telemetry settings must not take the trace away from the demo.
    run = baton("demo", env={"OTEL_TRACES_EXPORTER": "none", "OTEL_SDK_DISABLED": "true"})
    assert (run.returncode, run.stderr) == (0, "")
    answer, _, trace = run.stdout.partition("GenerateStream")
    assert "Why is the sky blue?" in answer
    assert "scatter" in answer
    assert "first after" in answer
    assert "tokens/s" in answer
    timing = re.search(r"first words (\S+) s after the command, (\S+) s of them", answer)
    assert timing is not None
    assert float(timing[1]) >= float(timing[2]) > 0
    assert [stage for stage in STAGES if stage not in "GenerateStream" + trace] == []


@pytest.mark.slow
def test_demo_takes_a_question() -> None:
    run = baton("demo", "What is the capital of France? One word.")
    assert run.returncode == 0
    assert "Paris" in run.stdout
