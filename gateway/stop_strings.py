"""Finds where a growing text must stop."""

from collections.abc import Sequence


class StopStrings:
    """Looks for stop strings in a text that arrives in pieces.

    The match that ends first wins, and of those that end together the longest; how the text was
    cut into pieces changes nothing. Text that may be the beginning of a match is held back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """``stops``: none of them empty."""
        self._stops = tuple(stops)
        self._prefixes = {stop[:n] for stop in stops for n in range(1, len(stop))}
        self._max_held = max((len(stop) - 1 for stop in stops), default=0)
        self._held = ""

    def push(self, piece: str, *, may_stop: bool = True) -> tuple[str, str | None]:
        """Adds text; returns what became certain, and the stop string that ended it, if any.

        A match that ends in a piece with ``may_stop`` false is ordinary text.
        """
        text = self._held + piece
        if may_stop and (match := self._find(text)) is not None:
            start, stop = match
            self._held = ""
            return text[:start], stop
        certain = len(text) - self._num_held(text)
        self._held = text[certain:]
        return text[:certain], None

    def finish(self) -> str:
        """What was held back, once no more text can come."""
        held, self._held = self._held, ""
        return held

    def _find(self, text: str) -> tuple[int, str] | None:
        """Start and string of the winning match that ends in the newest piece."""
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            start = text.find(stop, max(0, len(self._held) + 1 - len(stop)))
            if start >= 0:
                found = (start + len(stop), start, stop)
                best = found if best is None else min(best, found)
        return None if best is None else best[1:]

    def _num_held(self, text: str) -> int:
        """Length of the longest end of ``text`` that a match could begin with."""
        for length in range(min(self._max_held, len(text)), 0, -1):
            if text[-length:] in self._prefixes:
                return length
        return 0
