"""The engine with a step launched ahead, against the engine that waits for each."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from engine.batch import ModelRunnerOutput, SchedulerOutput
from engine.config import EngineConfig
from engine.llm_engine import Completion, LLMEngine
from engine.model_runner import ModelRunner
from engine.request import PENDING, Request, RequestStatus
from engine.sampling_params import SamplingParams
from tests.engine.tiny_model import VOCAB_SIZE

PARAMS = SamplingParams(temperature=1.0, max_tokens=40, eos_token_ids=frozenset({7, 70}))
PROMPTS = [
    [(seed * 31 + place * 7) % VOCAB_SIZE for place in range(3 + 9 * seed)] for seed in range(7)
]


class AheadRunner(ModelRunner):
    """Computes on the CPU, but says the tokens as late as a device does.

    Pending tokens are known here alone: those that the last launch drew.
    """

    _drawn: dict[Request, int] = {}  # noqa: RUF012

    def launch(self, output: SchedulerOutput) -> Callable[[], ModelRunnerOutput]:
        pending = [
            part.request for part in output.scheduled if part.request.token_ids[-1] == PENDING
        ]
        for request in pending:
            request.token_ids[-1] = self._drawn[request]
        result = self.run(output)
        for request in pending:
            request.token_ids[-1] = PENDING
        self._drawn = {
            part.request: samples[0].token_id
            for part, samples in zip(output.scheduled, result.samples, strict=True)
            if samples
        }
        return lambda: result

    def runs_ahead(self, output: SchedulerOutput) -> bool:
        return all(len(part.request.choices) == 1 for part in output.scheduled)


def make_engine(path: Path, num_blocks: int) -> LLMEngine:
    block_bytes = 2 * 3 * 2 * 16 * 16 * 4
    return LLMEngine(
        EngineConfig(
            model_path=str(path),
            dtype="float32",
            kv_memory_bytes=(num_blocks + 1) * block_bytes,
            max_num_batched_tokens=32,
            max_num_seqs=6,
            free_list_seed=2,
        )
    )


def generate(engine: LLMEngine, num_choices: list[int]) -> list[list[Completion]]:
    params = [
        replace(PARAMS, seed=seed, max_tokens=(40, 1, 2, 17, 40, 40, 33)[seed])
        for seed in range(len(PROMPTS))
    ]
    params[4] = replace(params[4], stop_token_ids=frozenset(range(0, VOCAB_SIZE, 12)))
    results = engine.generate(PROMPTS, params, num_choices)
    engine.blocks.check()
    assert engine.blocks.num_available == engine.runner.kv_cache.num_blocks
    return [list(choices) for choices in results]


@pytest.mark.parametrize(
    ("num_blocks", "num_choices"),
    [(60, 1), (60, 3), (8, 3)],
    ids=["one choice", "several choices", "preemptions"],
)
def test_a_step_ahead_changes_no_completion(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, num_blocks: int, num_choices: int
) -> None:
    """Requests end by length, by end token and by stop token, some of them in the middle of a step
    that was launched for them too."""
    choices = [1, 1, num_choices, 1, 1, num_choices, 1]
    waiting = make_engine(tiny_model, num_blocks)
    expected = generate(waiting, choices)
    assert (waiting.num_preemptions > 0) == (num_blocks == 8)
    monkeypatch.setattr("engine.llm_engine.open_runner", AheadRunner)
    ahead = make_engine(tiny_model, num_blocks)
    assert isinstance(ahead.runner, AheadRunner)
    for each, other in zip(generate(ahead, choices), expected, strict=True):
        assert [(one.token_ids, one.status) for one in each] == [
            (one.token_ids, one.status) for one in other
        ]


def test_what_a_step_draws_for_an_ended_request_is_noted_nowhere(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever takes completions at once, while the step after the last is still under way."""
    monkeypatch.setattr("engine.llm_engine.open_runner", AheadRunner)
    engine = make_engine(tiny_model, 60)
    stops = frozenset(range(0, VOCAB_SIZE, 12))
    for prompt in PROMPTS:
        engine.add_request(prompt, replace(PARAMS, logprobs=1, stop_token_ids=stops))
    finished: list[Completion] = []
    while engine.step():
        finished += [choice for (choice,) in engine.take_finished().values()]
    assert len(finished) == len(PROMPTS)
    assert any(each.status is RequestStatus.FINISHED_STOP for each in finished)
    for each in finished:
        assert [one.token_id for one in each.logprobs] == list(each.token_ids)
