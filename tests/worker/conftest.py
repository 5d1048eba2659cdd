"""A model small enough for both workers in the process of the test."""

from pathlib import Path

import pytest

from tests.engine.tiny_model import write_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_tiny_model(tmp_path_factory.mktemp("tiny"))
    # Only a gateway reads it, but a folder without one counts as incomplete.
    (folder / "tokenizer.json").write_text("{}")
    return folder
