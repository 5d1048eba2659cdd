"""One choice of a request at the gateway: its tokens in order, its text, its end."""

from collections.abc import Callable
from typing import NamedTuple

from baton.v1 import gateway_pb2, generation_pb2
from gateway.choice_text import ChoiceText

# These tokens are counted, but they are no text.
_WORDLESS = (generation_pb2.FINISH_REASON_EOS, generation_pb2.FINISH_REASON_STOP_TOKEN)


class _Received(NamedTuple):
    token_id: int
    logprobs: generation_pb2.TokenLogprobs | None
    finish: generation_pb2.FinishInfo | None


class Choice:
    """Commits tokens in index order, whatever order the legs deliver them in (protocol 1.3).

    ``token_ids`` is what is committed: a new attempt continues after it. ``finish`` is set with
    the last token; nothing is committed after it.
    """

    __slots__ = (
        "_delta_ids",
        "_delta_logprobs",
        "_delta_text",
        "_early",
        "_text",
        "_token_text",
        "finish",
        "has_delta",
        "index",
        "token_ids",
        "was_stopped_here",
    )

    def __init__(self, index: int, text: ChoiceText, token_text: Callable[[int], str]) -> None:
        """``token_text`` names single tokens for log probabilities."""
        self.index = index
        self.token_ids: list[int] = []
        self.finish: generation_pb2.FinishInfo | None = None
        self.was_stopped_here = False
        self.has_delta = False
        self._text = text
        self._token_text = token_text
        self._early: dict[int, _Received] = {}
        self._delta_text = ""
        self._delta_ids: list[int] = []
        self._delta_logprobs: list[generation_pb2.TokenLogprobs] = []

    def receive(
        self,
        index: int,
        token_id: int,
        logprobs: generation_pb2.TokenLogprobs | None,
        finish: generation_pb2.FinishInfo | None,
    ) -> int:
        """Takes the token at an output index; returns how many tokens became committed.

        A token that comes early waits for the ones before it, one that is known already is dropped.
        """
        next_index = len(self.token_ids)
        if index < next_index or self.finish is not None:
            return 0
        if index > next_index:
            self._early[index] = _Received(token_id, logprobs, finish)
            return 0
        self._commit(token_id, logprobs, finish)
        while self._early and self.finish is None:
            received = self._early.pop(len(self.token_ids), None)
            if received is None:
                break
            self._commit(*received)
        if self.finish is not None:
            self._early.clear()
        return len(self.token_ids) - next_index

    def forget_early(self) -> None:
        """Drops tokens that were never committed: their attempt is over."""
        self._early.clear()

    def take_delta(self) -> gateway_pb2.ChoiceDelta:
        """All output since the last delta."""
        delta = gateway_pb2.ChoiceDelta(
            index=self.index,
            text=self._delta_text,
            token_ids=self._delta_ids,
            logprobs=self._delta_logprobs,
            finish=self.finish,
        )
        self._delta_text = ""
        self._delta_ids = []
        self._delta_logprobs = []
        self.has_delta = False
        return delta

    def _commit(
        self,
        token_id: int,
        logprobs: generation_pb2.TokenLogprobs | None,
        finish: generation_pb2.FinishInfo | None,
    ) -> None:
        self.token_ids.append(token_id)
        self._delta_ids.append(token_id)
        self.has_delta = True
        if logprobs is not None:
            self._delta_logprobs.append(self._named(logprobs))
        if finish is None or finish.reason not in _WORDLESS:
            self._delta_text += self._text.push(token_id)
        if finish is not None and self._text.matched_stop is None:
            self._delta_text += self._text.finish()
        if self._text.matched_stop is not None:
            self.was_stopped_here = True
            finish = generation_pb2.FinishInfo(
                reason=generation_pb2.FINISH_REASON_STOP_STRING, stop=self._text.matched_stop
            )
        self.finish = finish

    def _named(self, logprobs: generation_pb2.TokenLogprobs) -> generation_pb2.TokenLogprobs:
        """A message may name a token only where it is valid UTF-8 alone."""
        for entry in (logprobs.chosen, *logprobs.top):
            text = self._token_text(entry.token_id)
            if "\ufffd" not in text:
                entry.text = text
        return logprobs
