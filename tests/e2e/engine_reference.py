"""One unsplit engine in this process: what the split one must equal, token for token."""

from collections.abc import Mapping, Sequence
from typing import Any

from baton.v1.generation_pb2 import SamplingParams as SamplingParamsPb
from chassis.model_store import resolve
from engine.config import EngineConfig
from engine.llm_engine import Completion, LLMEngine
from worker.leg import params_from_pb

MODEL = "smollm2-135m"
EOS_TOKEN_IDS = (0, 2)


class Reference:
    """A model in float32, SmolLM2 where no other is named."""

    def __init__(self, model: str = MODEL) -> None:
        path = str(resolve(model).path)
        self._engine = LLMEngine(EngineConfig(path, dtype="float32", kv_memory_bytes=256 << 20))

    def generate(
        self, token_ids: Sequence[int], choices: Sequence[int] = (0,), **sampling: Any
    ) -> dict[int, list[int]]:
        """The tokens of each choice, which are counted from 0."""
        (completions,) = self.complete([(token_ids, {**sampling, "n": len(choices)})])
        return {completion.choice: list(completion.token_ids) for completion in completions}

    def complete(
        self, requests: Sequence[tuple[Sequence[int], Mapping[str, Any]]]
    ) -> list[tuple[Completion, ...]]:
        """Runs prompts with their sampling, named as in the proto, together to their ends.

        Stop strings are text, of which an engine knows nothing: they change nothing here.
        """
        prompts = [token_ids for token_ids, _ in requests]
        params = [
            params_from_pb(SamplingParamsPb(**each), 1_000, EOS_TOKEN_IDS) for _, each in requests
        ]
        return self._engine.generate(prompts, params, [each.get("n", 1) for _, each in requests])
