"""A whole answer, gathered from its deltas."""

from collections.abc import Iterable

from baton.v1 import gateway_pb2


class Answer:
    """The choices of a unary answer while they grow."""

    def __init__(self, num_choices: int) -> None:
        self.choices = [gateway_pb2.GeneratedChoice(index=i) for i in range(num_choices)]
        self._texts: list[list[str]] = [[] for _ in range(num_choices)]

    def add(self, deltas: Iterable[gateway_pb2.ChoiceDelta]) -> None:
        """Appends deltas; a choice's text is set with its last one."""
        for delta in deltas:
            choice = self.choices[delta.index]
            choice.token_ids.extend(delta.token_ids)
            choice.logprobs.extend(delta.logprobs)
            self._texts[delta.index].append(delta.text)
            if delta.HasField("finish"):
                choice.text = "".join(self._texts[delta.index])
                choice.finish.CopyFrom(delta.finish)
