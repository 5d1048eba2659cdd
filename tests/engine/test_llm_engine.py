"""The same request gives the same tokens and log probabilities, to the last bit, whatever else the
engine does (float32)."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from engine.batch import ScheduledRequest, SchedulerOutput, TokenLogprobs
from engine.config import EngineConfig
from engine.errors import RequestError
from engine.llm_engine import Completion, LLMEngine
from engine.request import Request, RequestStatus
from engine.sampling_params import SamplingParams
from tests.engine.tiny_model import VOCAB_SIZE

# Tokens and their log probabilities.
Output: TypeAlias = tuple[tuple[int, ...], tuple[TokenLogprobs, ...]]
BLOCK_BYTES = 2 * 3 * 2 * 8 * 16 * 4


def make_engine(model: Path, *, num_blocks: int = 400, **settings: Any) -> LLMEngine:
    """Blocks of 8 tokens, handed out in shuffled order."""
    config = EngineConfig(
        model_path=str(model),
        dtype="float32",
        block_size=8,
        kv_memory_bytes=(num_blocks + 1) * BLOCK_BYTES,
        free_list_seed=5,
    )
    engine = LLMEngine(replace(config, **settings))
    assert engine.blocks.num_blocks == num_blocks
    return engine


def make_prompt(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(10, VOCAB_SIZE), k=length)


def make_requests() -> tuple[list[list[int]], list[SamplingParams]]:
    """32 requests of every kind, a third of them with a shared prefix of several blocks."""
    shared = make_prompt(45, seed=100)
    prompts, params = [], []
    for index in range(32):
        prompt = make_prompt(1 + 5 * index, seed=index)
        prompts.append(shared + prompt if index % 3 == 0 else prompt)
        params.append(
            SamplingParams(
                temperature=(0.0, 0.7, 1.3)[index % 3],
                top_k=(0, 12)[index % 2],
                top_p=(1.0, 0.8, 1.0)[index % 3],
                min_p=(0.0, 0.0, 0.05)[index % 3],
                seed=1000 + index,
                repetition_penalty=(1.0, 1.2)[index % 2],
                frequency_penalty=(0.0, 0.4)[index // 2 % 2],
                max_tokens=12 + index % 11,
                ignore_eos=True,
                logprobs=2,
            )
        )
    return prompts, params


def run_alone(
    engine: LLMEngine, prompts: list[list[int]], params: list[SamplingParams]
) -> list[Output]:
    return [
        outputs(engine.generate([prompt], [each]))[0]
        for prompt, each in zip(prompts, params, strict=True)
    ]


def outputs(results: list[tuple[Completion, ...]]) -> list[Output]:
    return [(completion.token_ids, completion.logprobs) for (completion,) in results]


def assert_all_blocks_back(engine: LLMEngine) -> None:
    engine.blocks.check()
    counts = engine.blocks.counts()
    assert counts.cached + counts.free == counts.total, counts


@pytest.fixture(scope="module")
def expected(tiny_model: Path) -> list[Output]:
    """Every request alone, whole prompt in one step, no cache."""
    engine = make_engine(tiny_model, max_num_batched_tokens=512, enable_prefix_cache=False)
    results = run_alone(engine, *make_requests())
    assert len({token_ids for token_ids, _ in results}) == len(results)
    assert_all_blocks_back(engine)
    return results


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"enable_prefix_cache": False},
        {"max_num_batched_tokens": 7},
        {"max_num_batched_tokens": 1},
        {"max_num_seqs": 3},
        {"block_size": 16, "num_blocks": 200, "kv_memory_bytes": 201 * 2 * BLOCK_BYTES},
    ],
    ids=[
        "a batch of 32",
        "without prefix cache",
        "chunks of 7",
        "token by token",
        "three at a time",
        "larger blocks",
    ],
)
def test_output_does_not_depend_on_the_batch(
    tiny_model: Path, expected: list[Output], settings: dict[str, Any]
) -> None:
    engine = make_engine(tiny_model, **settings)
    assert outputs(engine.generate(*make_requests())) == expected
    assert_all_blocks_back(engine)


@pytest.mark.parametrize("enable_prefix_cache", [True, False], ids=["cache", "no cache"])
def test_preempted_requests_are_resumed_and_none_is_lost(
    tiny_model: Path, expected: list[Output], enable_prefix_cache: bool
) -> None:
    """The pool holds the longest request and little more."""
    engine = make_engine(tiny_model, num_blocks=30, enable_prefix_cache=enable_prefix_cache)
    assert outputs(engine.generate(*make_requests())) == expected
    assert engine.num_preemptions > 0
    assert_all_blocks_back(engine)


def test_a_cached_prefix_changes_nothing_but_the_work(
    tiny_model: Path, expected: list[Output]
) -> None:
    engine = make_engine(tiny_model)
    prompts, params = make_requests()
    for _ in range(2):
        results = engine.generate(prompts, params)
        assert outputs(results) == expected
    for prompt, (completion,) in zip(prompts, results, strict=True):
        assert completion.num_cached_tokens == (len(prompt) - 1) // 8 * 8


def test_a_prompt_cached_to_its_end_computes_its_last_token(tiny_model: Path) -> None:
    engine = make_engine(tiny_model)
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    prompt = make_prompt(24, seed=3)
    (first,) = engine.generate([prompt + prompt], [params])[0]
    (second,) = engine.generate([prompt], [params])[0]
    assert second.num_cached_tokens == 16
    (third,) = engine.generate([prompt + prompt], [params])[0]
    assert first.token_ids == third.token_ids


def test_another_salt_shares_nothing(tiny_model: Path) -> None:
    engine = make_engine(tiny_model)
    params = SamplingParams(temperature=0.0, max_tokens=2)
    cached = []
    for salt in (b"one", b"two", b"one"):
        request_id = engine.add_request(make_prompt(30, seed=4), params, cache_salt=salt)
        while engine.step():
            pass
        cached.append(engine.take_finished()[request_id][0].num_cached_tokens)
    assert cached == [0, 0, 24]


@pytest.mark.parametrize("num_blocks", [400, 14], ids=["roomy pool", "pool too small for all"])
@pytest.mark.parametrize("length", [33, 40], ids=["partial block", "full blocks"])
def test_choices_equal_separate_requests(tiny_model: Path, num_blocks: int, length: int) -> None:
    prompt = make_prompt(length, seed=6)
    params = SamplingParams(temperature=1.0, seed=9, max_tokens=30, ignore_eos=True)
    engine = make_engine(tiny_model, num_blocks=num_blocks)
    (together,) = engine.generate([prompt], [params], [5])
    assert [completion.choice for completion in together] == [0, 1, 2, 3, 4]
    assert len({completion.token_ids for completion in together}) == 5
    assert (engine.num_preemptions > 0) == (num_blocks == 14)
    assert_all_blocks_back(engine)
    (alone,) = make_engine(tiny_model).generate([prompt], [params])[0]
    assert together[0].token_ids == alone.token_ids


@pytest.mark.parametrize("num_blocks", [400, 14], ids=["roomy pool", "pool too small for all"])
def test_penalties_count_each_choice_for_itself(tiny_model: Path, num_blocks: int) -> None:
    """A request that knows the tokens so far from its start draws the same next one (rule 5.3)."""
    prompt = make_prompt(33, seed=6)
    params = SamplingParams(
        seed=9,
        repetition_penalty=1.3,
        presence_penalty=0.8,
        frequency_penalty=0.7,
        max_tokens=30,
        ignore_eos=True,
    )
    engine = make_engine(tiny_model, num_blocks=num_blocks)
    (choices,) = engine.generate([prompt], [params], [5])
    assert (engine.num_preemptions > 0) == (num_blocks == 14)
    for completion in choices:
        output = list(completion.token_ids)
        for length in range(0, 30, 3):
            continued = Request(
                request_id="continued",
                token_ids=prompt + output[:length],
                num_prompt_tokens=len(prompt),
                params=params,
                choices=(completion.choice,),
                block_table=list(range(1, 9)),
            )
            step = SchedulerOutput((ScheduledRequest(continued, len(prompt) + length),))
            ((sample,),) = engine.runner.run(step).samples
            assert sample.token_id == output[length]


def test_choices_that_end_on_their_first_token_leave_the_others_alone(tiny_model: Path) -> None:
    prompt = make_prompt(33, seed=6)
    params = SamplingParams(temperature=1.5, seed=9, max_tokens=9, ignore_eos=True)
    engine = make_engine(tiny_model)
    (free_running,) = engine.generate([prompt], [params], [6])
    stop = free_running[2].token_ids[0]
    stopped = replace(params, stop_token_ids=frozenset({stop}))
    (results,) = engine.generate([prompt], [stopped], [6])
    for before, after in zip(free_running, results, strict=True):
        if stop in before.token_ids:
            end = before.token_ids.index(stop) + 1
            assert after.token_ids == before.token_ids[:end]
            assert after.status is RequestStatus.FINISHED_STOP
        else:
            assert after.token_ids == before.token_ids
    assert results[2].token_ids == (stop,)
    assert_all_blocks_back(engine)


def test_end_of_text_ends_a_request_unless_ignored(tiny_model: Path) -> None:
    engine = make_engine(tiny_model)
    favoured = SamplingParams(
        temperature=0.0, max_tokens=5, logit_bias={7: 100.0}, eos_token_ids=frozenset({7})
    )
    prompt = make_prompt(9, seed=1)
    ends, ignores, waits = (
        engine.generate([prompt], [params])[0][0]
        for params in (
            favoured,
            replace(favoured, ignore_eos=True),
            replace(favoured, min_tokens=3),
        )
    )
    assert (ends.status, ends.token_ids) == (RequestStatus.FINISHED_EOS, (7,))
    assert (ignores.status, len(ignores.token_ids)) == (RequestStatus.FINISHED_LENGTH, 5)
    assert (waits.status, len(waits.token_ids)) == (RequestStatus.FINISHED_EOS, 3)
    assert 7 not in waits.token_ids[:2]


def test_logprobs_come_with_every_token(tiny_model: Path) -> None:
    engine = make_engine(tiny_model, num_blocks=30)
    params = SamplingParams(temperature=0.0, max_tokens=6, logprobs=3, ignore_eos=True)
    prompts = [make_prompt(20, seed=seed) for seed in range(10)]
    for (completion,) in engine.generate(prompts, [params] * 10):
        assert [entry.token_id for entry in completion.logprobs] == list(completion.token_ids)
        for entry in completion.logprobs:
            assert entry.top[0] == (entry.token_id, entry.logprob)
            assert len(entry.top) == 3


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "message"),
    [
        ([], 1, "empty"),
        ([3, VOCAB_SIZE], 1, f"token id {VOCAB_SIZE}"),
        ([3, -1], 1, "token id -1"),
        ([3] * 500, 13, "513 tokens; 512 fit"),
    ],
    ids=["empty", "id too high", "negative id", "too long"],
)
def test_impossible_requests_are_refused(
    tiny_model: Path, prompt: list[int], max_tokens: int, message: str
) -> None:
    engine = make_engine(tiny_model)
    with pytest.raises(RequestError, match=message):
        engine.add_request(prompt, SamplingParams(max_tokens=max_tokens))


def test_the_pool_bounds_the_length_of_a_request(tiny_model: Path) -> None:
    engine = make_engine(tiny_model, num_blocks=10)
    with pytest.raises(RequestError, match="81 tokens; 80 fit"):
        engine.add_request(make_prompt(70, seed=0), SamplingParams(max_tokens=11))
    params = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True)
    ((completion,),) = engine.generate([make_prompt(70, seed=0)], [params])
    assert len(completion.token_ids) == 10
