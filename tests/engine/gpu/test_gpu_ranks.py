"""Two GPUs that compute a model together, against one."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from engine.errors import RankLost
from engine.llm_engine import LLMEngine
from tests.engine.gpu.test_gpu_engine import PARAMS, PROMPTS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.multi_gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two NVIDIA GPUs"),
]


def make_engine(path: Path, num_ranks: int) -> LLMEngine:
    engine = LLMEngine(
        EngineConfig(
            model_path=str(path),
            dtype="float32",
            kv_memory_bytes=16 << 20,
            max_num_batched_tokens=64,
            max_num_seqs=8,
            device="cuda",
            tensor_parallel_size=num_ranks,
        )
    )
    engine.runner.warm_up()
    return engine


def outputs(engine: LLMEngine) -> list[tuple[int, ...]]:
    return [each.token_ids for (each,) in engine.generate(PROMPTS, PARAMS)]


def test_two_gpus_give_the_tokens_of_one_and_end_when_one_is_lost(tiny_model: Path) -> None:
    expected = outputs(make_engine(tiny_model, 1))
    engine = make_engine(tiny_model, 2)
    for _ in range(2):
        assert outputs(engine) == expected
    (pid,) = engine.runner.rank_pids
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(RankLost, match="rank 1 was ended by signal 9"):
        engine.generate(PROMPTS, [replace(each, max_tokens=200) for each in PARAMS])
    engine.runner.close()
