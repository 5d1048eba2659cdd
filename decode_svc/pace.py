"""How evenly an attempt's tokens came."""

from array import array


class Pace:
    """When an attempt's first step began, and the gaps between its steps, in seconds.

    The engine thread observes; the event loop reads once the attempt is over.
    """

    __slots__ = ("_gaps", "_last", "began_at", "num_steps")

    def __init__(self) -> None:
        self.num_steps = 0
        self.began_at = 0.0
        self._last = 0.0
        self._gaps = array("f")

    def observe(self, began: float, ended: float) -> None:
        """The times of a step, of one clock; one call a step, whatever the number of choices."""
        if self.num_steps:
            self._gaps.append(ended - self._last)
        else:
            self.began_at = began
        self._last = ended
        self.num_steps += 1

    def percentiles(self) -> dict[str, float]:
        """p50, p90 and p99 by nearest rank; empty with fewer than two steps."""
        ordered = sorted(self._gaps)
        if not ordered:
            return {}
        return {
            f"p{percent}": ordered[(len(ordered) - 1) * percent // 100] for percent in (50, 90, 99)
        }
