from pathlib import Path
from typing import Any

import pytest
import torch

from engine.batch import ScheduledRequest, SchedulerOutput
from engine.config import EngineConfig
from engine.errors import CheckpointError, ConfigurationError
from engine.forward_batch import build_forward_batch
from engine.model_runner import ModelRunner
from engine.request import Request
from engine.sampling_params import SamplingParams

BLOCK_BYTES = 2 * 3 * 2 * 8 * 16 * 4


def make_runner(model: Path, *, num_blocks: int = 40, **settings: Any) -> ModelRunner:
    return ModelRunner(
        EngineConfig(
            model_path=str(model),
            dtype="float32",
            block_size=8,
            kv_memory_bytes=(num_blocks + 1) * BLOCK_BYTES,
            **settings,
        )
    )


def make_request(
    token_ids: list[int], block_table: list[int], num_computed_tokens: int = 0
) -> Request:
    return Request(
        request_id="request",
        token_ids=token_ids,
        num_prompt_tokens=len(token_ids),
        params=SamplingParams(temperature=0.0, logprobs=3),
        block_table=block_table,
        num_computed_tokens=num_computed_tokens,
    )


def test_forward_batch_lays_out_prompts_chunks_and_decode() -> None:
    first = make_request([11, 12, 13], [5])
    second = make_request(list(range(20, 60)), [9, 2, 7, 4, 3], num_computed_tokens=6)
    third = make_request([70] * 17, [8, 1, 6], num_computed_tokens=16)
    batch = build_forward_batch(
        SchedulerOutput(
            (ScheduledRequest(first, 3), ScheduledRequest(second, 4), ScheduledRequest(third, 1))
        ),
        block_size=8,
    )
    assert batch.token_ids.tolist() == [11, 12, 13, 26, 27, 28, 29, 70]
    assert batch.positions.tolist() == [0, 1, 2, 6, 7, 8, 9, 16]
    assert batch.slot_blocks.tolist() == [5, 5, 5, 9, 9, 2, 2, 6]
    assert batch.slot_offsets.tolist() == [0, 1, 2, 6, 7, 0, 1, 0]
    assert batch.query_starts.tolist() == [0, 3, 7, 8]
    assert batch.seq_lens.tolist() == [3, 10, 17]
    assert batch.block_tables.tolist() == [[5, 0, 0], [9, 2, 0], [8, 1, 6]]
    assert batch.logit_indices.tolist() == [2, 7]
    assert (batch.query_lens, batch.context_lens) == ((3, 4, 1), (0, 6, 16))
    assert not batch.is_decode
    tensors = [getattr(batch, name) for name in batch.__dataclass_fields__]
    assert {t.dtype for t in tensors if isinstance(t, torch.Tensor)} == {torch.int64}


def test_a_chunk_that_stops_short_of_the_last_token_draws_nothing(tiny_model: Path) -> None:
    runner = make_runner(tiny_model)
    whole, part = make_request([11, 12, 13], [1]), make_request([21] * 20, [2, 3, 4])
    output = runner.run(SchedulerOutput((ScheduledRequest(part, 9), ScheduledRequest(whole, 3))))
    assert [len(samples) for samples in output.samples] == [0, 1]
    output = runner.run(SchedulerOutput((ScheduledRequest(part, 9),)))
    assert output.samples == ((),)


def test_chunks_give_the_same_logprobs_as_one_step(tiny_model: Path) -> None:
    runner = make_runner(tiny_model)
    tokens = [10 + 7 * index % 140 for index in range(30)]
    whole = make_request(tokens, [1, 2, 3, 4])
    ((expected,),) = runner.run(SchedulerOutput((ScheduledRequest(whole, 30),))).samples
    chunked = make_request(tokens, [9, 5, 7, 6])
    for size in (1, 11, 8, 9, 1):
        output = runner.run(SchedulerOutput((ScheduledRequest(chunked, size),)))
        chunked.num_computed_tokens += size
    ((actual,),) = output.samples
    assert actual.token_id == expected.token_id
    assert expected.logprobs is not None
    assert actual.logprobs is not None
    assert actual.logprobs.logprob == pytest.approx(expected.logprobs.logprob, abs=1e-4)


def test_the_shorter_of_context_and_pool_limits_a_sequence(tiny_model: Path) -> None:
    assert make_runner(tiny_model, num_blocks=40).max_model_len == 40 * 8
    assert make_runner(tiny_model, num_blocks=100).max_model_len == 512


@pytest.mark.parametrize("num_blocks", [1, 100], ids=["smallest pool", "roomy pool"])
def test_warm_up_leaves_the_pool_as_it_was(tiny_model: Path, num_blocks: int) -> None:
    runner = make_runner(tiny_model, num_blocks=num_blocks)
    runner.kv_cache.tensor[1:].fill_(1.5)
    runner.warm_up()
    assert (runner.kv_cache.tensor[1:] == 1.5).all()
    assert runner.kv_cache.tensor.isfinite().all()


def test_threads_are_as_configured(tiny_model: Path) -> None:
    before = torch.get_num_threads()
    try:
        make_runner(tiny_model, num_threads=before + 1)
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


def test_what_cannot_be_loaded_says_why(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="kv_memory_bytes"):
        make_runner(tiny_model, num_blocks=0)
    with pytest.raises(CheckpointError, match=str(tmp_path)):
        make_runner(tmp_path / "nothing")
