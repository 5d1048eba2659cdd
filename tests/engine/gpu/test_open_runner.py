"""Which runner a configuration gets, where there is no GPU."""

import pytest
import torch

from engine.config import EngineConfig
from engine.errors import ConfigurationError
from engine.model_runner import open_runner


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="needs an NVIDIA GPU"):
        open_runner(EngineConfig(model_path="any", device="cuda"))


def test_random_weights_on_a_cpu_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="dummy"):
        open_runner(EngineConfig(model_path="any", load_format="dummy"))
