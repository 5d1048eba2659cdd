"""What the GPU's sampler does on the host."""

import torch

from engine.gpu.sampler import GpuSampler


def test_a_step_that_draws_for_nobody_draws_nothing() -> None:
    assert GpuSampler().draw(torch.empty(0, 8), []).tolist() == []
