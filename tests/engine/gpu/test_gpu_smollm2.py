"""The default model on a GPU against the same model on the CPU."""

from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.llm_engine import LLMEngine
from engine.sampling_params import SamplingParams
from tests.engine.near_ties import TOLERANCE, gap_of_the_best
from tests.engine.test_smollm2_engine import ANSWER, PROMPT, make_requests

pytestmark = pytest.mark.gpu


def make_engine(path: Path, device: str) -> LLMEngine:
    engine = LLMEngine(
        EngineConfig(
            model_path=str(path),
            kv_memory_bytes=256 << 20,
            max_num_batched_tokens=64,
            max_num_seqs=32,
            num_threads=8,
            device="cuda" if device == "cuda" else "cpu",
        )
    )
    engine.runner.warm_up()
    return engine


def test_golden_greedy_answer_on_a_gpu(smollm2_path: Path) -> None:
    engine = make_engine(smollm2_path, "cuda")
    params = SamplingParams(temperature=0.0, max_tokens=20, eos_token_ids=frozenset({2}))
    for _ in range(2):
        ((completion,),) = engine.generate([PROMPT], [params])
        assert completion.token_ids == ANSWER


def test_greedy_answers_differ_from_the_cpu_only_at_near_ties(smollm2_path: Path) -> None:
    cpu, gpu = make_engine(smollm2_path, "cpu"), make_engine(smollm2_path, "cuda")
    prompts, _ = make_requests(16)
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    expected = cpu.generate(prompts, [params] * 16)
    actual = gpu.generate(prompts, [params] * 16)
    for prompt, (one,), (other,) in zip(prompts, expected, actual, strict=True):
        pairs = list(zip(one.token_ids, other.token_ids, strict=True))
        first = next((place for place, (a, b) in enumerate(pairs) if a != b), len(pairs))
        if first < len(pairs):
            known = prompt + list(one.token_ids[:first])
            # Two steps of bfloat16 at the size of these logits, 16 to 32.
            assert gap_of_the_best(cpu, known, params) <= TOLERANCE
