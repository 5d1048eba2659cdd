"""Tokenizers for the tests: SmolLM2's, and others made of its vocabulary."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from chassis.model_store import resolve
from gateway.model_limits import ModelLimits
from gateway.tokenizer import Tokenizer, load_tokenizer
from tests.gateway.text.vocabularies import write_vocabulary


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    return resolve("smollm2-135m").path


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> Tokenizer:
    return load_tokenizer(smollm2_path)


@pytest.fixture(scope="session")
def limits(smollm2: Tokenizer) -> ModelLimits:
    return ModelLimits.of(smollm2)


@pytest.fixture(scope="session")
def vocabulary_path(
    smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """Path of a GGUF file with the tokenizer of a kind: "spm" or a pre-tokenizer's name."""
    folder = tmp_path_factory.mktemp("vocabularies")
    return cache(lambda kind: write_vocabulary(folder, smollm2_path, kind))


@pytest.fixture(scope="session")
def tokenizer_of(vocabulary_path: Callable[[str], Path]) -> Callable[[str], Tokenizer]:
    """The tokenizer of a kind."""
    return cache(lambda kind: load_tokenizer(vocabulary_path(kind)))
