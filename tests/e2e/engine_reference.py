"""One unsplit engine in this process: what the split one must equal, token for token."""

from collections.abc import Sequence
from typing import Any

from baton.v1.generation_pb2 import SamplingParams as SamplingParamsPb
from chassis.model_store import resolve
from engine.batch import ScheduledRequest, SchedulerOutput
from engine.config import EngineConfig
from engine.model_runner import ModelRunner
from engine.request import Request
from worker.leg import params_from_pb


class Reference:
    """SmolLM2 in float32, one request at a time."""

    def __init__(self) -> None:
        self._runner = ModelRunner(
            EngineConfig(
                str(resolve("smollm2-135m").path), dtype="float32", kv_memory_bytes=256 << 20
            )
        )

    def generate(
        self, token_ids: Sequence[int], choices: Sequence[int] = (0,), **sampling: Any
    ) -> dict[int, list[int]]:
        """The tokens of each choice."""
        params = params_from_pb(SamplingParamsPb(**sampling), 1_000)
        answers = {}
        for choice in choices:
            request = Request("r", list(token_ids), len(token_ids), params, choices=(choice,))
            request.block_table = list(range(1, 2 + (len(token_ids) + params.max_tokens) // 16))
            while not request.status.is_finished:
                part = ScheduledRequest(request, request.num_uncomputed_tokens)
                ((sample,),) = self._runner.run(SchedulerOutput((part,))).samples
                request.num_computed_tokens = request.num_tokens
                request.append(sample.token_id, self._runner.model_config.eos_token_ids)
            answers[choice] = request.output_token_ids
        return answers
