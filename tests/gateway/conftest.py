"""A gateway in front of scripted workers."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from chassis.model_store import resolve
from gateway.tokenizer import Tokenizer, load_tokenizer
from tests.gateway.stage import Stage, StageOptions, everybody_ready, on_stage

OpenStage = Callable[[StageOptions], Awaitable[Stage]]


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return load_tokenizer(resolve("smollm2-135m").path)


@pytest.fixture
async def open_stage(tokenizer: Tokenizer) -> AsyncIterator[OpenStage]:
    """Opens a stage with options; closed after the test."""
    async with AsyncExitStack() as stack:

        async def open_with(options: StageOptions) -> Stage:
            stage = await stack.enter_async_context(on_stage(tokenizer, options))
            await everybody_ready(stage)
            return stage

        yield open_with


@pytest.fixture
async def stage(open_stage: OpenStage) -> Stage:
    """One worker of each role, the usual limits."""
    return await open_stage(StageOptions())
