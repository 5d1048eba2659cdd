"""The unsplit engine: prompts in, tokens out, in one process. What the split stack must equal."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engine.batch import ModelRunnerOutput, SchedulerOutput, TokenLogprobs
from engine.block_manager import BlockManager
from engine.config import EngineConfig
from engine.errors import RequestError
from engine.mixed_scheduler import MixedScheduler
from engine.model_runner import open_runner
from engine.request import Request, RequestStatus
from engine.sampling_params import SamplingParams
from engine.step_under_way import StepUnderWay
from engine.weights.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class Completion:
    """One finished choice. ``logprobs`` is empty unless the parameters asked for them."""

    choice: int
    token_ids: tuple[int, ...]
    status: RequestStatus
    num_cached_tokens: int
    logprobs: tuple[TokenLogprobs, ...]


@dataclass(slots=True)
class _Choices:
    """What is known of a request's choices so far."""

    number: int
    logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    completions: dict[int, Completion] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Launched:
    """A step that the device may still be computing; ``result`` waits for it."""

    output: SchedulerOutput
    step: StepUnderWay
    result: Callable[[], ModelRunnerOutput]


class LLMEngine:
    """Schedules, runs and updates; one thread, nothing outside the process."""

    def __init__(self, config: EngineConfig, checkpoint: Checkpoint | None = None) -> None:
        self.runner = open_runner(config, checkpoint)
        self.blocks = BlockManager(
            self.runner.kv_cache.num_blocks, free_list_seed=config.free_list_seed
        )
        self._scheduler = MixedScheduler(
            self.blocks,
            block_size=config.block_size,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_num_seqs=config.max_num_seqs,
            enable_prefix_cache=config.enable_prefix_cache,
        )
        self._under_way: _Launched | None = None
        self._choices: dict[str, _Choices] = {}
        self._names = map(str, itertools.count())

    @property
    def num_preemptions(self) -> int:
        return self._scheduler.num_preemptions

    @property
    def num_decoding(self) -> int:
        """Requests that run and whose prompts are computed."""
        return self._scheduler.num_decoding

    def add_request(
        self,
        token_ids: Sequence[int],
        params: SamplingParams,
        *,
        num_choices: int = 1,
        cache_salt: bytes = b"",
    ) -> str:
        """Queues a request and returns its id. Raises RequestError where it can never be served."""
        self._check(token_ids, params)
        request_id = next(self._names)
        self._choices[request_id] = _Choices(num_choices)
        request = Request(
            request_id=request_id,
            token_ids=list(token_ids),
            num_prompt_tokens=len(token_ids),
            params=params,
            choices=tuple(range(num_choices)),
            cache_salt=cache_salt,
        )
        self._scheduler.add(request)
        return request_id

    def step(self) -> bool:
        """Launches one step and takes the last one in; False where there was neither.

        Where the device computes on its own, a step is scheduled, launched and left to it while
        the one before is taken in, so that the host's work hides behind the device's.
        """
        output = self._scheduler.schedule()
        last, self._under_way = self._under_way, None
        if output.scheduled:
            result = self.runner.launch(output)
            self._under_way = _Launched(output, self._scheduler.advance(output), result)
        if last is not None:
            self._take_in(last)
        launched = self._under_way
        if launched is not None and not self.runner.runs_ahead(output):
            self._take_in(launched)
            self._under_way = None
        return bool(output.scheduled) or last is not None

    def _take_in(self, launched: "_Launched") -> None:
        result = launched.result()
        self._note_logprobs(launched.output, result)
        finished, copies = self._scheduler.update(launched.step, result)
        self.runner.copy_blocks(copies)
        for request in finished:
            self._complete(request)

    def take_finished(self) -> dict[str, tuple[Completion, ...]]:
        """Requests whose choices have all finished since the last call, by id, choices in order."""
        done = {
            request_id: tuple(choices.completions[choice] for choice in range(choices.number))
            for request_id, choices in self._choices.items()
            if len(choices.completions) == choices.number
        }
        for request_id in done:
            del self._choices[request_id]
        return done

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        params: Sequence[SamplingParams],
        num_choices: Sequence[int] | None = None,
    ) -> list[tuple[Completion, ...]]:
        """Runs the requests together to their ends; one tuple of choices per prompt, in order."""
        numbers = num_choices if num_choices is not None else [1] * len(prompts)
        request_ids = [
            self.add_request(prompt, each, num_choices=number)
            for prompt, each, number in zip(prompts, params, numbers, strict=True)
        ]
        while self.step():
            pass
        finished = self.take_finished()
        return [finished[request_id] for request_id in request_ids]

    def _check(self, token_ids: Sequence[int], params: SamplingParams) -> None:
        vocab_size = self.runner.model_config.vocab_size
        if not token_ids:
            raise RequestError("the prompt is empty")
        if unknown := [token_id for token_id in token_ids if not 0 <= token_id < vocab_size]:
            raise RequestError(f"token id {unknown[0]} is not in the vocabulary of {vocab_size}")
        num_tokens, limit = len(token_ids) + params.max_tokens, self.runner.max_model_len
        if num_tokens > limit:
            raise RequestError(f"prompt and max_tokens make {num_tokens} tokens; {limit} fit")

    def _note_logprobs(self, output: SchedulerOutput, result: ModelRunnerOutput) -> None:
        for part, samples in zip(output.scheduled, result.samples, strict=True):
            # What ended after the step was launched draws nothing any more.
            if part.request.status.is_finished:
                continue
            for sample in samples:
                if sample.logprobs is not None:
                    choices = self._choices[part.request.request_id]
                    choices.logprobs.setdefault(sample.choice, []).append(sample.logprobs)

    def _complete(self, request: Request) -> None:
        choices = self._choices[request.request_id]
        (choice,) = request.choices
        choices.completions[choice] = Completion(
            choice=choice,
            token_ids=tuple(request.output_token_ids),
            status=request.status,
            num_cached_tokens=request.num_cached_tokens,
            logprobs=tuple(choices.logprobs.get(choice, ())),
        )
