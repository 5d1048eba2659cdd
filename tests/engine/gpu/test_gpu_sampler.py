"""What the GPU's sampler does on the host."""

import torch

from engine.gpu.sampler import GpuSampler
from engine.request import Request
from engine.sampling_params import SamplingParams


def test_a_step_that_draws_for_nobody_draws_nothing() -> None:
    assert GpuSampler().draw(torch.empty(0, 8), []).tolist() == []


def test_a_request_draws_the_same_beside_any_number_of_others() -> None:
    """Also where the rows of numbers are padded: 3 are no multiple of 4."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    logits = torch.randn(3, 1000, generator=torch.Generator().manual_seed(0)).to(device)
    requests = [
        Request(f"r{seed}", [1, 2], 2, SamplingParams(temperature=1.5, seed=seed))
        for seed in range(3)
    ]
    alone = [GpuSampler().draw(logits[row : row + 1], [requests[row]]).item() for row in range(3)]
    assert GpuSampler().draw(logits, requests).tolist() == alone
    assert alone != logits.argmax(dim=1).tolist()
