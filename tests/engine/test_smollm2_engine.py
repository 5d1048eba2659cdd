"""The default model through the unsplit engine: the whole compute path against fixed answers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.llm_engine import LLMEngine
from engine.request import RequestStatus
from engine.sampling_params import SamplingParams
from tests.engine.near_ties import equal_up_to_a_near_tie

# "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
PROMPT = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]
# "The capital of France is Paris.<|im_end|>"
ANSWER = (504, 3575, 282, 4649, 314, 7042, 30, 2)


def make_engine(path: Path, dtype: Any, quantization: Any) -> LLMEngine:
    return LLMEngine(
        EngineConfig(
            model_path=str(path),
            dtype=dtype,
            quantization=quantization,
            kv_memory_bytes=256 << 20,
            max_num_batched_tokens=64,
            free_list_seed=1,
        )
    )


@pytest.mark.parametrize(
    ("dtype", "quantization"),
    [("float32", "none"), ("bfloat16", "none"), ("bfloat16", "q4")],
    ids=["float32", "bfloat16", "q4"],
)
def test_golden_greedy_answer(smollm2_path: Path, dtype: str, quantization: str) -> None:
    engine = make_engine(smollm2_path, dtype, quantization)
    params = SamplingParams(temperature=0.0, max_tokens=20, eos_token_ids=frozenset({2}))
    for _ in range(2):
        ((completion,),) = engine.generate([PROMPT], [params])
        assert completion.token_ids == ANSWER
        assert completion.status is RequestStatus.FINISHED_EOS
    engine.blocks.check()


def make_requests(number: int) -> tuple[list[list[int]], list[SamplingParams]]:
    """Prompts of four lengths; every second request is greedy."""
    prompts = [PROMPT[:2] + PROMPT[2:] * (1 + index % 4) for index in range(number)]
    greedy = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    params = [
        greedy if index % 2 == 0 else replace(greedy, temperature=1.0, seed=index)
        for index in range(number)
    ]
    return prompts, params


def test_float32_is_the_same_to_the_bit_alone_and_in_a_batch_of_32(smollm2_path: Path) -> None:
    engine = make_engine(smollm2_path, "float32", "none")
    prompts, params = make_requests(32)
    params = [replace(each, logprobs=3) for each in params]
    together = engine.generate(prompts, params)
    for prompt, each, (expected,) in zip(prompts[:6], params[:6], together[:6], strict=True):
        ((alone,),) = engine.generate([prompt], [each])
        assert (alone.token_ids, alone.logprobs) == (expected.token_ids, expected.logprobs)


@pytest.mark.parametrize("quantization", ["none", "q4"], ids=["bfloat16", "q4"])
def test_lower_precision_differs_from_itself_only_at_near_ties(
    smollm2_path: Path, quantization: str
) -> None:
    """Alone and in a batch the kernels differ, and so do the last bits of the logits."""
    engine = make_engine(smollm2_path, "bfloat16", quantization)
    prompts, params = make_requests(32)
    params = [replace(each, max_tokens=16) for each in params]
    together = engine.generate(prompts, params)
    num_equal = sum(
        equal_up_to_a_near_tie(engine, prompt, each, batched.token_ids)
        for prompt, each, (batched,) in zip(prompts[:8], params[:8], together[:8], strict=True)
    )
    assert num_equal > 60
