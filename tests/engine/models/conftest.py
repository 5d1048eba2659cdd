"""SmolLM2, which the model tests load in several ways."""

import pytest

from chassis.model_store import resolve
from engine.weights.checkpoint import Checkpoint, open_checkpoint


@pytest.fixture(scope="session")
def smollm2() -> Checkpoint:
    return open_checkpoint(str(resolve("smollm2-135m").path))
