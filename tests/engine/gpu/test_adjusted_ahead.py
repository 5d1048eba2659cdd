"""Requests whose logits are adjusted: a step ahead with the sampler of a GPU, against an engine
that waits for each step and draws on the CPU. In the interpreter without a GPU."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.batch import ModelRunnerOutput, SchedulerOutput
from engine.config import EngineConfig
from engine.forward_batch import build_forward_batch
from engine.gpu.sampler import GpuSampler, adjusted_draws, samples
from engine.llm_engine import Completion, LLMEngine
from engine.model_runner import ModelRunner
from engine.request import PENDING, Request, RequestStatus
from engine.sampling_params import SamplingParams
from engine.weights.checkpoint import Checkpoint
from tests.engine.tiny_model import VOCAB_SIZE

pytestmark = pytest.mark.slow
# Of log probabilities, whose sums are made in another order.
TOLERANCE = 1e-5
BLOCK_BYTES = 2 * 3 * 2 * 16 * 16 * 4
EVERYTHING = SamplingParams(
    temperature=1.0,
    repetition_penalty=1.2,
    presence_penalty=0.3,
    frequency_penalty=0.4,
    logit_bias={3: 2.0, 150: -4.0},
    eos_token_ids=frozenset({7, 70}),
    min_tokens=8,
    max_tokens=14,
    logprobs=3,
)
PARAMS = [
    replace(EVERYTHING, seed=1, max_tokens=34),
    replace(EVERYTHING, temperature=0.0, max_tokens=28),
    replace(EVERYTHING, seed=3, logprobs=None, max_tokens=28),
    SamplingParams(seed=4, max_tokens=30),
    SamplingParams(
        seed=5, max_tokens=28, logprobs=0, stop_token_ids=frozenset(range(0, VOCAB_SIZE, 12))
    ),
]
PROMPTS = [
    [(seed * 31 + place * 7) % VOCAB_SIZE for place in range(3 + 9 * seed)] for seed in range(5)
]


class DrawsOnDevice(ModelRunner):
    """Computes on the CPU and draws as a GpuModelRunner does: what a step draws stays on the device
    until it is taken in."""

    _rows: dict[Request, int] = {}  # noqa: RUF012
    num_ahead = 0

    def __init__(self, config: EngineConfig, checkpoint: Checkpoint | None) -> None:
        super().__init__(config, checkpoint)
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        # Fewer slots than requests: histories come again, with a pending token at their end.
        self._device_sampler = GpuSampler(VOCAB_SIZE, 2, self._device)
        self._drawn = torch.empty(0, dtype=torch.int32)

    @torch.inference_mode()
    def launch(self, output: SchedulerOutput) -> Callable[[], ModelRunnerOutput]:
        drawing = [part.samples for part in output.scheduled]
        sampling = [part.request for part in output.scheduled if part.samples]
        pending = [
            part.request for part in output.scheduled if part.request.token_ids[-1] == PENDING
        ]
        self.num_ahead += any(adjusted_draws([request]) for request in pending)
        batch = build_forward_batch(output, self.kv_cache.block_size)
        rows = [self._rows[request] for request in pending]
        batch.token_ids[batch.token_ids == PENDING] = self._drawn[rows].long().cpu()
        logits = self._compute(batch)
        logits = torch.empty(0) if logits is None else logits
        logits = logits.to(self._device)
        last_tokens = batch.token_ids[batch.logit_indices].int().to(self._device)
        token_ids = self._device_sampler.draw(logits, sampling)
        ranking = None
        if draws := adjusted_draws(sampling):
            ranking = self._device_sampler.redraw(logits, last_tokens, draws, token_ids)
        self._drawn, self._rows = token_ids, {each: row for row, each in enumerate(sampling)}

        def result() -> ModelRunnerOutput:
            drawn = token_ids.tolist()
            logprobs = {}
            if ranking is not None:
                logprobs = ranking.read(ranking.words.cpu().numpy().astype(np.int32), drawn)
            by_request = iter(samples(sampling, drawn, logprobs))
            return ModelRunnerOutput(tuple(next(by_request) if draws else () for draws in drawing))

        return result

    def runs_ahead(self, output: SchedulerOutput) -> bool:
        return all(len(part.request.choices) == 1 for part in output.scheduled)


def make_engine(path: Path, num_blocks: int) -> LLMEngine:
    return LLMEngine(
        EngineConfig(
            model_path=str(path),
            dtype="float32",
            kv_memory_bytes=(num_blocks + 1) * BLOCK_BYTES,
            max_num_batched_tokens=32,
            max_num_seqs=6,
            free_list_seed=2,
        )
    )


def generate(engine: LLMEngine, num_choices: list[int]) -> list[Completion]:
    results = engine.generate(PROMPTS, PARAMS, num_choices)
    engine.blocks.check()
    return [choice for choices in results for choice in choices]


@pytest.mark.parametrize(
    "num_blocks",
    [60, 7],
    ids=["room for all", "preemptions"],
)
def test_a_step_ahead_changes_no_adjusted_draw(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, num_blocks: int
) -> None:
    """One ends by a stop token, in the middle of a step that was launched for it too."""
    choices = [1, 1, 3, 1, 1]
    waiting = make_engine(tiny_model, num_blocks)
    expected = generate(waiting, choices)
    assert expected[-1].status is RequestStatus.FINISHED_STOP
    assert (waiting.num_preemptions > 0) == (num_blocks == 7)
    monkeypatch.setattr("engine.llm_engine.open_runner", DrawsOnDevice)
    ahead = make_engine(tiny_model, num_blocks)
    actual = generate(ahead, choices)
    assert isinstance(ahead.runner, DrawsOnDevice)
    assert ahead.runner.num_ahead > 5
    for ours, theirs in zip(actual, expected, strict=True):
        assert (ours.token_ids, ours.status) == (theirs.token_ids, theirs.status)
        for one, other in zip(ours.logprobs, theirs.logprobs, strict=True):
            assert [token_id for token_id, _ in one.top] == [token_id for token_id, _ in other.top]
            assert [one.logprob, *(value for _, value in one.top)] == pytest.approx(
                [other.logprob, *(value for _, value in other.top)], abs=TOLERANCE, rel=TOLERANCE
            )
