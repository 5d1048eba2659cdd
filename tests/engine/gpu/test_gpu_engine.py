"""The unsplit engine on a GPU: captured steps against eager ones, and both against the CPU."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.batch import SchedulerOutput
from engine.config import EngineConfig
from engine.dummy_part import dummy_part
from engine.gpu.model_runner import GpuModelRunner
from engine.gpu.sampler import is_plain
from engine.llm_engine import Completion, LLMEngine
from engine.sampling_params import SamplingParams
from tests.engine.models.tiny_checkpoint import random_prompt

pytestmark = pytest.mark.gpu
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
# Of log probabilities: the products of float32 are made in another order.
TOLERANCE = 1e-3
PROMPTS = [random_prompt(length, seed=length) for length in (1, 5, 16, 33, 70, 64, 90)]
PARAMS = [
    GREEDY,
    replace(GREEDY, temperature=1.0, seed=5),
    replace(GREEDY, temperature=0.7, top_k=20, top_p=0.9, seed=1 << 63),
    replace(GREEDY, max_tokens=3),
    replace(GREEDY, repetition_penalty=1.3, frequency_penalty=0.2),
    replace(GREEDY, temperature=1.0, min_p=0.1, seed=9, max_tokens=11),
    replace(GREEDY, logprobs=3),
]


def make_engine(path: Path, device: str, *, warm: bool) -> LLMEngine:
    engine = LLMEngine(
        EngineConfig(
            model_path=str(path),
            dtype="float32",
            kv_memory_bytes=16 << 20,
            max_num_batched_tokens=64,
            max_num_seqs=8,
            free_list_seed=3,
            device="cuda" if device == "cuda" else "cpu",
        )
    )
    if warm:
        engine.runner.warm_up()
    return engine


def outputs(engine: LLMEngine) -> list[tuple[int, ...]]:
    completions = engine.generate(PROMPTS, PARAMS)
    engine.blocks.check()
    return [completion.token_ids for (completion,) in completions]


def test_captured_steps_equal_eager_ones_and_the_cpu(tiny_model: Path) -> None:
    expected = outputs(make_engine(tiny_model, "cpu", warm=False))
    assert outputs(make_engine(tiny_model, "cuda", warm=False)) == expected
    captured = make_engine(tiny_model, "cuda", warm=True)
    assert outputs(captured) == expected
    assert outputs(captured) == expected


def test_choices_and_preemption_on_a_gpu_equal_the_cpu(tiny_model: Path) -> None:
    params = replace(GREEDY, temperature=1.0, seed=2)
    results = []
    for device in ("cpu", "cuda"):
        engine = make_engine(tiny_model, device, warm=device == "cuda")
        completions = engine.generate(PROMPTS[:3], [params] * 3, [3, 1, 2])
        results.append([[each.token_ids for each in choices] for choices in completions])
    assert results[0] == results[1]


def test_a_prompt_alone_that_takes_several_steps_equals_the_cpu(tiny_model: Path) -> None:
    """Its first steps draw nothing at all."""
    prompt = random_prompt(150, seed=1)
    results = []
    for device in ("cpu", "cuda"):
        engine = make_engine(tiny_model, device, warm=device == "cuda")
        ((completion,),) = engine.generate([prompt], [GREEDY])
        results.append(completion.token_ids)
    assert results[0] == results[1]


def test_a_captured_step_tells_what_it_took_the_device_and_how_long_that_waited(
    tiny_model: Path,
) -> None:
    engine = make_engine(tiny_model, "cuda", warm=True)
    runner, step = engine.runner, SchedulerOutput((dummy_part(1, 20, 16),))
    runner.run(step)
    began = time.monotonic()
    times = [runner.run(step).device_time for _ in range(5)]
    seconds = time.monotonic() - began
    told = [each for each in times if each is not None]
    assert len(told) == 5
    assert all(each.computing > 0 and each.idle > 0 for each in told)
    assert sum(each.computing for each in told) < seconds
    prompt = SchedulerOutput((dummy_part(8, 0, 16),))
    assert runner.run(prompt).device_time is None


def test_where_a_launch_fails_nothing_of_it_is_still_running(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would write into blocks that are given back then."""
    runner = make_engine(tiny_model, "cuda", warm=True).runner
    assert isinstance(runner, GpuModelRunner)

    def fail(*_: object) -> None:
        raise RuntimeError("nothing lands")

    monkeypatch.setattr(runner._landings, "send", fail)
    torch.cuda._sleep(100_000_000)  # type: ignore[no-untyped-call]
    with pytest.raises(RuntimeError, match="nothing lands"):
        runner.launch(SchedulerOutput((dummy_part(1, 20, 16),)))
    assert torch.cuda.current_stream().query()


def adjusted(engine: LLMEngine) -> list[Completion]:
    """Of requests that are all adjusted, and have several choices in part."""
    params = [
        replace(
            GREEDY,
            temperature=0.8 * (place % 2),
            seed=place,
            repetition_penalty=1.2,
            presence_penalty=0.2,
            frequency_penalty=0.3,
            logit_bias={3: 2.0, 40: -50.0},
            stop_token_ids=frozenset(range(0, 60, 7)),
            min_tokens=6 + place,
            logprobs=place,
        )
        for place in range(len(PROMPTS))
    ]
    num_choices = [1, 2, 1, 1, 3, 1, 1]
    completions = engine.generate(PROMPTS, params, num_choices)
    return [choice for choices in completions for choice in choices]


def test_adjusted_requests_run_ahead_and_say_what_they_do_without(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = adjusted(make_engine(tiny_model, "cpu", warm=False))
    asked = GpuModelRunner.runs_ahead
    ahead: list[bool] = []

    def note(runner: GpuModelRunner, output: SchedulerOutput) -> bool:
        if runs := asked(runner, output):
            ahead.append(any(not is_plain(part.request) for part in output.scheduled))
        return runs

    engine = make_engine(tiny_model, "cuda", warm=True)
    monkeypatch.setattr(GpuModelRunner, "runs_ahead", note)
    results = [adjusted(engine)]
    assert sum(ahead) > 20
    monkeypatch.setattr(GpuModelRunner, "runs_ahead", lambda runner, output: False)
    results.append(adjusted(engine))
    for actual in results:
        for ours, theirs in zip(actual, expected, strict=True):
            assert (ours.token_ids, ours.status) == (theirs.token_ids, theirs.status)
            for one, other in zip(ours.logprobs, theirs.logprobs, strict=True):
                assert one.logprob == pytest.approx(other.logprob, abs=TOLERANCE)
                assert [value for _, value in one.top] == pytest.approx(
                    [value for _, value in other.top], abs=TOLERANCE
                )
