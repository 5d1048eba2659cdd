"""Every family through the whole engine: chunked prompts, a cached prefix, scattered blocks."""

from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from engine.llm_engine import Completion, LLMEngine
from engine.sampling_params import SamplingParams
from tests.engine.models.tiny_checkpoint import CASES, Case, random_prompt, write_checkpoint

# Of log probabilities, float32.
TOLERANCE = 1e-4
PROMPT = random_prompt(70)
NUM_TOKENS = 24
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=0)


def expected_logprobs(folder: Path, case: Case) -> tuple[list[int], torch.Tensor]:
    """What transformers generates greedily, and the log probability of each token."""
    model = write_checkpoint(case, folder)
    token_ids = list(PROMPT)
    with torch.inference_mode():
        for _ in range(NUM_TOKENS):
            logits = model(torch.tensor([token_ids])).logits[0]
            token_ids.append(int(logits[-1].argmax()))
        logprobs = logits[len(PROMPT) - 1 :].log_softmax(-1)
    output = token_ids[len(PROMPT) :]
    return output, logprobs[torch.arange(NUM_TOKENS), output]


def check(completion: Completion, token_ids: list[int], logprobs: torch.Tensor) -> None:
    assert list(completion.token_ids) == token_ids
    actual = torch.tensor([each.logprob for each in completion.logprobs])
    torch.testing.assert_close(actual, logprobs, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_chunks_and_a_cached_prefix_give_what_transformers_gives(
    case: Case, tmp_path: Path
) -> None:
    token_ids, logprobs = expected_logprobs(tmp_path, case)
    engine = LLMEngine(
        EngineConfig(
            model_path=str(tmp_path),
            dtype="float32",
            kv_memory_bytes=8 << 20,
            max_num_batched_tokens=24,
            free_list_seed=3,
        )
    )
    ((cold,),) = engine.generate([PROMPT], [GREEDY])
    assert cold.num_cached_tokens == 0
    check(cold, token_ids, logprobs)
    ((warm,), (short,)) = engine.generate([PROMPT, PROMPT[:40]], [GREEDY, GREEDY])
    assert (warm.num_cached_tokens, short.num_cached_tokens) == (64, 32)
    check(warm, token_ids, logprobs)
