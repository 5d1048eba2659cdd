"""The default model through the unsplit engine: the whole compute path against fixed answers."""

from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.llm_engine import LLMEngine
from engine.request import RequestStatus
from engine.sampling_params import SamplingParams

# "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
PROMPT = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]
# "The capital of France is Paris.<|im_end|>"
ANSWER = (504, 3575, 282, 4649, 314, 7042, 30, 2)


def make_engine(path: Path, dtype: str, quantization: str) -> LLMEngine:
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
    params = SamplingParams(temperature=0.0, max_tokens=20)
    for _ in range(2):
        ((completion,),) = engine.generate([PROMPT], [params])
        assert completion.token_ids == ANSWER
        assert completion.status is RequestStatus.FINISHED_EOS
    engine.blocks.check()


def test_float32_text_is_the_same_alone_and_in_a_batch_of_32(smollm2_path: Path) -> None:
    engine = make_engine(smollm2_path, "float32", "none")
    prompts = [PROMPT[:2] + PROMPT[2:] * (1 + index % 4) for index in range(32)]
    params = [
        SamplingParams(
            temperature=(0.0, 0.8)[index % 2], top_p=0.95, seed=index, max_tokens=8, ignore_eos=True
        )
        for index in range(32)
    ]
    together = engine.generate(prompts, params)
    for prompt, each, (expected,) in zip(prompts[:6], params[:6], together[:6], strict=True):
        ((alone,),) = engine.generate([prompt], [each])
        assert alone.token_ids == expected.token_ids
