"""An answer, put together from its stream."""

from dataclasses import dataclass, field
from typing import Any

from baton.v1 import gateway_pb2, generation_pb2
from chassis.durations import to_seconds

_TIMINGS = (
    "admission",
    "tokenize",
    "prefill_queue",
    "prefill_compute",
    "time_to_first_token",
    "kv_transfer",
    "decode",
    "total",
)


@dataclass(slots=True)
class Choice:
    """One choice so far."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[generation_pb2.TokenLogprobs] = field(default_factory=list)
    finish: generation_pb2.FinishInfo | None = None


class Answer:
    """Collects the messages of one GenerateStream."""

    def __init__(self) -> None:
        self.choices: dict[int, Choice] = {}
        self.summary: gateway_pb2.GenerateSummary | None = None

    def add(self, message: gateway_pb2.GenerateStreamResponse) -> None:
        """Takes in a message, in order of arrival."""
        for delta in message.deltas:
            choice = self.choices.setdefault(delta.index, Choice())
            choice.text += delta.text
            choice.token_ids.extend(delta.token_ids)
            choice.logprobs.extend(delta.logprobs)
            if delta.HasField("finish"):
                choice.finish = delta.finish
        if message.HasField("summary"):
            self.summary = message.summary

    @property
    def text(self) -> str:
        """Text of the first choice."""
        return self.choices[0].text if 0 in self.choices else ""

    def to_json(self) -> dict[str, Any]:
        """The answer for programs: names as in the protos, times in seconds."""
        result: dict[str, Any] = {
            "choices": [
                {"index": index, **_choice_json(choice)}
                for index, choice in sorted(self.choices.items())
            ]
        }
        if self.summary is not None:
            usage = self.summary.usage
            result = {
                "request_id": self.summary.request_id,
                "model": self.summary.model,
                **result,
                "usage": {
                    "prompt_tokens": usage.prompt_tokens,
                    "cached_tokens": usage.cached_tokens,
                    "completion_tokens": usage.completion_tokens,
                },
                "timings": timings_json(self.summary.timings),
            }
        return result

    def statistics(self) -> str:
        """One line for people: tokens, time to first token, rate."""
        if self.summary is None:
            return "interrupted"
        usage, timings = self.summary.usage, self.summary.timings
        first = to_seconds(timings.time_to_first_token)
        decode = to_seconds(timings.decode)
        parts = [
            f"{usage.prompt_tokens} + {usage.completion_tokens} tokens",
            f"first after {first:.3f} s",
        ]
        # The first token of each choice is prefill's; the rate is of those after it.
        later = usage.completion_tokens - len(self.choices)
        if later > 0 and decode > 0:
            parts.append(f"then {later / decode:.1f} tokens/s")
        return ", ".join([*parts, f"request {self.summary.request_id}"])


def _choice_json(choice: Choice) -> dict[str, Any]:
    result: dict[str, Any] = {"text": choice.text, "token_ids": choice.token_ids}
    if choice.logprobs:
        result["logprobs"] = [
            {**_logprob_json(row.chosen), "top": [_logprob_json(entry) for entry in row.top]}
            for row in choice.logprobs
        ]
    if choice.finish is not None:
        result["finish"] = _finish_json(choice.finish)
    return result


def _logprob_json(entry: generation_pb2.Logprob) -> dict[str, Any]:
    return {"token_id": entry.token_id, "logprob": entry.logprob, "text": entry.text}


def _finish_json(finish: generation_pb2.FinishInfo) -> dict[str, Any]:
    name = generation_pb2.FinishReason.Name(finish.reason)
    result: dict[str, Any] = {"reason": name.removeprefix("FINISH_REASON_").lower()}
    if finish.HasField("stop"):
        result["stop"] = finish.stop
    if finish.HasField("stop_token_id"):
        result["stop_token_id"] = finish.stop_token_id
    return result


def timings_json(timings: generation_pb2.Timings) -> dict[str, float]:
    """The stages that were measured, in seconds."""
    return {
        f"{name}_seconds": to_seconds(getattr(timings, name))
        for name in _TIMINGS
        if timings.HasField(name)  # type: ignore[arg-type]
    }
