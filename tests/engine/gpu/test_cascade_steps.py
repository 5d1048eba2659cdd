"""Whole decode steps that share prefixes, not captured; in the interpreter without a GPU."""

from pathlib import Path

import pytest
import torch

from engine.attention.triton_backend import TritonAttention
from engine.gpu.cascade_inputs import CascadeInputs
from engine.gpu.decode_inputs import DecodeInputs
from engine.kv_cache import KvCache
from engine.models import load_model
from engine.request import Request
from engine.sampling_params import SamplingParams
from engine.weights.checkpoint import open_checkpoint

BLOCK, MAX_SEQUENCES = 16, 6
TOLERANCE = 1e-4
OWN_TOKENS = (5, 20, 33)


def request(table: list[int], num_tokens: int) -> Request:
    return Request(
        request_id="r",
        token_ids=[(7 * place + num_tokens) % 160 for place in range(num_tokens)],
        num_prompt_tokens=1,
        params=SamplingParams(temperature=0.0),
        block_table=table,
        num_computed_tokens=num_tokens - 1,
    )


def make_requests() -> list[Request]:
    """Three share 256 tokens, one shares nothing."""
    shared = list(range(1, 17))
    family = [
        request([*shared, *range(20 + 10 * place, 24 + 10 * place)], 256 + own)
        for place, own in enumerate(OWN_TOKENS)
    ]
    return [*family[:1], request([60, 61, 62], 20), *family[1:]]


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Stepper:
    """A model over a pool of random numbers that steps as a captured step does."""

    def __init__(self, path: Path, device: torch.device, *, shares: bool) -> None:
        checkpoint = open_checkpoint(str(path))
        self._model = load_model(checkpoint, torch.float32, device=device)
        self._kv_cache = KvCache(
            checkpoint.config, num_blocks=70, block_size=BLOCK, dtype=torch.float32, device=device
        )
        self._kv_cache.tensor.normal_(generator=torch.Generator(device).manual_seed(1))
        self._attention = TritonAttention(self._kv_cache)
        self._inputs = DecodeInputs(
            max_sequences=MAX_SEQUENCES, max_blocks=32, block_size=BLOCK, device=device
        )
        self._shared = CascadeInputs(
            self._kv_cache,
            checkpoint.config.num_heads,
            MAX_SEQUENCES,
            lambda members, tokens: shares,
        )

    @torch.inference_mode()
    def step(self, requests: list[Request]) -> torch.Tensor:
        """Logits; each request goes on with its likeliest token."""
        self._inputs.fill(requests, [-1] * len(requests), MAX_SEQUENCES)
        found = self._shared.fill(requests)
        batch = self._inputs.batch(MAX_SEQUENCES)
        self._inputs.prepare(batch, MAX_SEQUENCES)
        self._attention.plan_captured(
            batch,
            self._inputs.tables,
            self._inputs.table_stride,
            None if found is None else self._shared.cascade,
        )
        hidden = self._model.forward(batch, self._kv_cache, self._attention)
        logits = self._model.compute_logits(hidden)[: len(requests)].cpu()
        for each, token_id in zip(requests, logits.argmax(-1).tolist(), strict=True):
            each.token_ids.append(token_id)
            each.num_computed_tokens += 1
        return logits


def test_sequences_that_come_and_go_get_the_logits_of_those_by_themselves(
    tiny_model: Path, device: torch.device
) -> None:
    flat, together = (Stepper(tiny_model, device, shares=shares) for shares in (False, True))
    alone, shared = make_requests(), make_requests()
    for places in ([0, 1, 2, 3], [0, 1, 2, 3], [3, 1, 2], [1], [0, 2]):
        expected = flat.step([alone[place] for place in places])
        actual = together.step([shared[place] for place in places])
        torch.testing.assert_close(actual, expected, atol=TOLERANCE, rtol=TOLERANCE)
