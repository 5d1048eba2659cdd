"""What is sent of shared prefixes, and when; the device is a CPU here."""

import numpy as np
import pytest
import torch

from engine.gpu.cascade_inputs import NOTHING, CascadeInputs
from engine.gpu.decode_graphs import ToldStep
from engine.parallel.step_message import decode, encode
from engine.request import Request
from engine.sampling_params import SamplingParams
from tests.engine.attention_cases import make_model, make_pool

BLOCK = 16


def request(table: list[int]) -> Request:
    return Request(
        request_id="r",
        token_ids=[0] * (len(table) * BLOCK),
        num_prompt_tokens=1,
        params=SamplingParams(),
        block_table=table,
        num_computed_tokens=len(table) * BLOCK - 1,
    )


def make_inputs() -> CascadeInputs:
    pool = make_pool(make_model(), num_blocks=4, dtype=torch.float32, block_size=BLOCK)
    return CascadeInputs(pool, 6, 4, lambda members, tokens: tokens >= 256)


def family(first_block: int, number: int, num_shared: int = 16) -> list[Request]:
    shared = list(range(first_block, first_block + num_shared))
    return [request([*shared, first_block + 100 + place]) for place in range(number)]


def starts(inputs: CascadeInputs) -> list[int]:
    return inputs.cascade.starts(4).tolist()


def test_what_does_not_pay_is_computed_without() -> None:
    assert make_inputs().fill([*family(1, 1), *family(200, 2, num_shared=15)]) is None


def test_a_plan_is_sent_once_for_the_same_sequences() -> None:
    inputs = make_inputs()
    sequences = [*family(1, 2), *family(500, 1)]
    words = inputs.fill(sequences)
    assert words is not None and len(words) > 0
    assert starts(inputs) == [256, 256, 0, 0]
    sequences[0].block_table.append(99)
    assert inputs.fill(sequences) is NOTHING


def test_places_that_sequences_left_share_nothing() -> None:
    inputs = make_inputs()
    sequences = family(1, 4)
    inputs.fill(sequences)
    inputs.fill(sequences[1:3])
    assert starts(inputs) == [256, 256, 0, 0]
    assert inputs.cascade.work(4).slots[2:, 1].tolist() == [0, 0]


def test_a_plan_is_sent_again_after_another_one() -> None:
    inputs = make_inputs()
    two, three = family(1, 2), family(1, 3)
    inputs.fill(two)
    inputs.fill(three)
    inputs.fill(two)
    assert starts(inputs) == [256, 256, 0, 0]


def test_another_rank_knows_what_rank_0_has_found() -> None:
    first, other = make_inputs(), make_inputs()
    for sequences in (family(1, 4), family(1, 2), family(1, 2)):
        step = ToldStep(4, np.arange(5, dtype=np.int32), first.fill(sequences))
        told = ToldStep.from_arrays(decode(encode(3, step.arrays()))[1])
        assert (told.bucket, told.words.tolist()) == (4, [0, 1, 2, 3, 4])
        assert told.shared is not None
        other.load(told.shared)
        assert torch.equal(first.cascade.words, other.cascade.words)


@pytest.mark.parametrize("shared", [None, NOTHING])
def test_a_step_without_words_of_prefixes_is_told_apart(shared: np.ndarray | None) -> None:
    step = ToldStep(2, np.arange(3, dtype=np.int32), shared)
    told = ToldStep.from_arrays(decode(encode(3, step.arrays()))[1])
    assert (told.shared is None) == (shared is None)
