"""In float32 a token's logits are the same bits, whatever else is computed and in what steps."""

from collections.abc import Iterator

import pytest
import torch

from engine.models import DecoderModel, load_model
from engine.weights.checkpoint import open_checkpoint
from tests.engine.models.mixed_steps import MixedSteps
from tests.engine.models.tiny_checkpoint import CASES, Case, random_prompt, write_checkpoint

# Around the borders of blocks and of attention's tiles; the longest makes products in pieces.
PROMPTS = [random_prompt(length) for length in (1, 2, 17, 64, 128, 129, 300)]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> DecoderModel:
    case: Case = request.param
    folder = tmp_path_factory.mktemp(case.name)
    write_checkpoint(case, folder)
    return load_model(open_checkpoint(str(folder)), torch.float32)


@pytest.fixture(scope="module")
def alone(tiny: DecoderModel) -> list[torch.Tensor]:
    """Logits of every prompt in a step of its own."""
    steps = MixedSteps(tiny)
    return [steps.alone(prompt) for prompt in PROMPTS]


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def assert_same_bits(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    same = [torch.equal(*pair) for pair in zip(actual, expected, strict=True)]
    assert same == [True] * len(expected)


def test_chunks_decode_and_company_change_no_bit(
    tiny: DecoderModel, alone: list[torch.Tensor]
) -> None:
    steps = MixedSteps(tiny)
    assert_same_bits(steps.mixed([steps.add(prompt) for prompt in PROMPTS], seed=1), alone)


def test_other_threads_and_other_blocks_change_no_bit(
    tiny: DecoderModel, alone: list[torch.Tensor], three_threads: None
) -> None:
    steps = MixedSteps(tiny, seed=2)
    assert_same_bits(steps.mixed([steps.add(prompt) for prompt in PROMPTS], seed=2), alone)


def test_a_prefix_that_others_computed_changes_no_bit(
    tiny: DecoderModel, alone: list[torch.Tensor]
) -> None:
    steps = MixedSteps(tiny)
    *shorter, longest = (steps.add(prompt) for prompt in PROMPTS)
    steps.mixed([longest], seed=3)
    cached = [steps.add(request.token_ids, longest) for request in shorter]
    assert [request.num_computed_tokens for request in cached] == [0, 0, 16, 48, 112, 128]
    rest = [logits[each.num_computed_tokens :] for logits, each in zip(alone, cached, strict=False)]
    assert_same_bits(steps.mixed(cached, seed=4), rest)


def test_tokens_that_draw_nothing_leave_all_that_the_others_need(
    tiny: DecoderModel, alone: list[torch.Tensor]
) -> None:
    steps = MixedSteps(tiny)
    requests = [steps.add(prompt) for prompt in PROMPTS]
    # Chunks of which none draws, then all that is left: of each sequence the last token draws.
    longer = [request for request in requests if len(request.token_ids) > 16]
    assert steps.draw([(request, 16) for request in longer]).shape[0] == 0
    parts = [(each, len(each.token_ids) - each.num_computed_tokens) for each in requests]
    assert_same_bits(list(steps.draw(parts)), [logits[-1] for logits in alone])
