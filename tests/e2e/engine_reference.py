"""One unsplit engine in this process: what the split one must equal, token for token."""

from collections.abc import Sequence
from typing import Any

from baton.v1.generation_pb2 import SamplingParams as SamplingParamsPb
from chassis.model_store import resolve
from engine.config import EngineConfig
from engine.llm_engine import LLMEngine
from worker.leg import params_from_pb


class Reference:
    """SmolLM2 in float32."""

    def __init__(self) -> None:
        path = str(resolve("smollm2-135m").path)
        self._engine = LLMEngine(EngineConfig(path, dtype="float32", kv_memory_bytes=256 << 20))

    def generate(
        self, token_ids: Sequence[int], choices: Sequence[int] = (0,), **sampling: Any
    ) -> dict[int, list[int]]:
        """The tokens of each choice, which are counted from 0."""
        params = params_from_pb(SamplingParamsPb(**sampling), 1_000)
        (completions,) = self._engine.generate([token_ids], [params], [len(choices)])
        return {completion.choice: list(completion.token_ids) for completion in completions}
