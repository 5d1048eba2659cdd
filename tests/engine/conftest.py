from pathlib import Path

import pytest

from chassis.model_store import resolve
from tests.engine.tiny_model import write_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny random checkpoint with a context of 512 tokens."""
    return write_tiny_model(tmp_path_factory.mktemp("tiny_model"))


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    return resolve("smollm2-135m").path
