from pathlib import Path

import pytest

from tests.engine.tiny_model import write_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny random checkpoint with a context of 512 tokens."""
    return write_tiny_model(tmp_path_factory.mktemp("tiny_model"))
