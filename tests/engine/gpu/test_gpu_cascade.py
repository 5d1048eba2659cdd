"""Decode steps that share prefixes, on a GPU: against the reference, and captured in an engine."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from engine.attention.cascade_table import CascadeHeads, CascadeRow, write_cascade
from engine.attention.triton_backend import TritonAttention
from engine.gpu.cascade_inputs import CascadeInputs
from engine.kernels.cuda.prefix_shape import PrefixShape
from engine.llm_engine import LLMEngine
from engine.request import Request
from engine.weights.checkpoint import open_checkpoint
from tests.engine.attention_cases import make_model, make_pool
from tests.engine.gpu.test_gpu_engine import GREEDY, make_engine
from tests.engine.kernels.cuda.test_attention_kernels import reference_output
from tests.engine.kernels.cuda.test_cascade import (
    BLOCK,
    NUM_BLOCKS,
    Family,
    make_query,
    make_requests,
    make_step,
    planned,
)
from tests.engine.models.tiny_checkpoint import random_prompt

pytestmark = pytest.mark.gpu
# Of a sequence's norm: bfloat16 against sums in float32.
TOLERANCE = 2e-2
# None: what the table says for this GPU.
SHAPES = (None, PrefixShape(64, 64, 4, 3, 2), PrefixShape(128, 128, 8, 3, 1))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_shared_prefixes_of_llama_equal_float32(shape: PrefixShape | None, head_dim: int) -> None:
    """Tiles of members that are full and that are not, nested prefixes, and own parts in pieces."""
    device = torch.device("cuda")
    model = make_model(num_heads=32, num_kv_heads=8, head_dim=head_dim)
    pool = make_pool(
        model, num_blocks=NUM_BLOCKS, dtype=torch.bfloat16, block_size=BLOCK, device=device
    )
    families = [Family(72, [1] * 40), Family(0, [700]), Family(16, [40, 5, 2000], inner=24)]
    requests = make_requests(families)
    batch = make_step(requests).to(device)
    query = make_query(len(requests), pool, 32)
    attention = TritonAttention(pool)
    tables = batch.block_tables.int().flatten()
    stride = torch.tensor([batch.block_tables.shape[1]], dtype=torch.int32, device=device)
    attention.plan_captured(batch, tables, stride, planned(pool, requests, 32, shape))
    expected = reference_output(pool, batch, query, None).float().flatten(1)
    for _ in range(2):
        difference = attention.run(1, query).cpu().float().flatten(1) - expected
        assert (difference.norm(dim=1) / expected.norm(dim=1)).max() < TOLERANCE


def outputs(engine: LLMEngine) -> list[list[tuple[int, ...]]]:
    """Choices of one prompt share its blocks, and so do requests whose prompts begin alike."""
    prompt = random_prompt(300, seed=1)
    params = replace(GREEDY, temperature=1.0, seed=4)
    engine.generate([prompt], [replace(GREEDY, max_tokens=1)])
    prompts = [prompt + random_prompt(number, seed=number) for number in (3, 20, 40)]
    prompts = [prompt, *prompts, random_prompt(9, seed=5)]
    completions = engine.generate(prompts, [params] * 5, [3, 1, 1, 1, 1])
    engine.blocks.check()
    return [[each.token_ids for each in choices] for choices in completions]


def test_captured_steps_that_share_prefixes_give_the_tokens_of_the_cpu(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = outputs(make_engine(tiny_model, "cpu", warm=False))
    monkeypatch.setenv("BATON_KERNEL_DIR", str(tmp_path))
    heads = CascadeHeads.of_model(open_checkpoint(str(tiny_model)).config)
    write_cascade(CascadeRow(torch.cuda.get_device_name(), heads, ((2, 128),), "a test"))
    found = []
    fill = CascadeInputs.fill

    def noting(self: CascadeInputs, requests: Sequence[Request]) -> NDArray[np.int32] | None:
        found.append(fill(self, requests))
        return found[-1]

    monkeypatch.setattr(CascadeInputs, "fill", noting)
    engine = make_engine(tiny_model, "cuda", warm=True)
    for _ in range(2):
        assert outputs(engine) == expected
    assert any(words is not None for words in found)
