"""Two ranks on the CPU, in processes of their own, against one."""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch

from engine.batch import ForwardBatch
from engine.config import EngineConfig
from engine.devices import check_device_count
from engine.errors import ConfigurationError, RankLost
from engine.llm_engine import LLMEngine
from engine.model_runner import ModelRunner, open_runner
from engine.parallel.ranks import Ranks
from engine.sampling_params import SamplingParams
from tests.engine.models.tiny_checkpoint import CASES, Case, random_prompt, write_checkpoint

PROMPTS = [random_prompt(length, seed=length) for length in (1, 5, 16, 33, 70)]
GREEDY = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
PARAMS = [
    GREEDY,
    replace(GREEDY, temperature=1.0, seed=5),
    replace(GREEDY, temperature=0.7, top_k=20, top_p=0.9, seed=1 << 63),
    replace(GREEDY, repetition_penalty=1.3, logprobs=2),
    GREEDY,
]


@contextmanager
def engine_of(path: Path, num_ranks: int) -> Iterator[LLMEngine]:
    engine = LLMEngine(
        EngineConfig(
            model_path=str(path),
            dtype="float32",
            kv_memory_bytes=8 << 20,
            max_num_batched_tokens=48,
            tensor_parallel_size=num_ranks,
        )
    )
    with closing(engine.runner):
        yield engine


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case.name in ("llama3", "qwen2", "qwen3")],
    ids=lambda case: case.name,
)
def test_two_ranks_give_the_tokens_of_one(case: Case, tmp_path: Path) -> None:
    write_checkpoint(case, tmp_path, 0)
    answers = []
    for num_ranks in (1, 2):
        with engine_of(tmp_path, num_ranks) as engine:
            engine.runner.warm_up()
            completions = engine.generate(PROMPTS, PARAMS, [1, 2, 1, 1, 3])
        answers.append([[each.token_ids for each in choices] for choices in completions])
    assert answers[0] == answers[1]


def test_nobody_can_take_the_port_of_the_ranks_while_they_start(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def try_the_port(ranks: Ranks, config: EngineConfig, rank: int, port: int) -> None:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        tried.append(port)
        start(ranks, config, rank, port)

    start = Ranks._start
    monkeypatch.setattr(Ranks, "_start", try_the_port)
    with engine_of(tiny_model, 2) as engine:
        engine.generate(PROMPTS, PARAMS)
    assert len(tried) == 1


def test_heads_that_cannot_be_divided_are_refused_with_both_numbers(tiny_model: Path) -> None:
    with (
        pytest.raises(ConfigurationError, match="2 KV heads cannot be divided among 4 ranks"),
        engine_of(tiny_model, 4),
    ):
        pass


@pytest.mark.slow
def test_the_death_of_a_rank_is_the_end_with_its_reason(tiny_model: Path) -> None:
    with engine_of(tiny_model, 2) as engine:
        engine.generate(PROMPTS, PARAMS)
        (pid,) = engine.runner.rank_pids
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(RankLost, match="rank 1 was ended by signal 9"):
            engine.generate(PROMPTS, PARAMS)


def test_a_step_that_fails_in_the_first_rank_is_the_end_of_all(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are in the middle of it."""

    def fail(runner: ModelRunner, batch: ForwardBatch) -> None:
        raise MemoryError("no room")

    with engine_of(tiny_model, 2) as engine:
        monkeypatch.setattr(ModelRunner, "_compute", fail)
        with pytest.raises(RankLost, match="rank 0 failed in a step of all ranks: no room"):
            engine.generate(PROMPTS, PARAMS)


def test_ranks_listen_on_loopback_alone(tiny_model: Path) -> None:
    with engine_of(tiny_model, 2) as engine:
        addresses = [listening(pid) for pid in (os.getpid(), *engine.runner.rank_pids)]
    assert addresses == [{"127.0.0.1"}] * 2


def listening(pid: int) -> set[str]:
    """Where a process accepts connections."""
    connections = psutil.Process(pid).net_connections("inet")
    return {each.laddr.ip for each in connections if each.status == psutil.CONN_LISTEN}


def test_more_ranks_than_gpus_are_refused_with_both_numbers() -> None:
    count = torch.cuda.device_count()
    with pytest.raises(ConfigurationError, match=f"{count + 1} ranks .* sees {count}"):
        check_device_count("cuda", count + 1)


def test_a_rank_that_cannot_load_is_no_reason_to_wait(tiny_model: Path) -> None:
    config = EngineConfig(str(tiny_model), dtype="float32", tensor_parallel_size=2)
    with pytest.raises(RankLost, match="rank 1 ended with exit code 1"):
        open_runner(config, rank_module="engine.parallel.absent")
