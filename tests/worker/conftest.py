"""A model small enough for both workers in the process of the test."""

import json
from pathlib import Path

import pytest

from tests.engine.tiny_model import write_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_tiny_model(tmp_path_factory.mktemp("tiny"))
    # Workers only tell which vocabulary they have.
    vocabulary = {"model": {"vocab": {"a": 0}}, "added_tokens": []}
    (folder / "tokenizer.json").write_text(json.dumps(vocabulary))
    return folder
