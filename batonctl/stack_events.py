"""What happens in a running stack, as its views see it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogLine:
    """A service wrote a line."""

    service: str
    line: str


@dataclass(frozen=True, slots=True)
class Started:
    """A service was started again."""

    service: str


@dataclass(frozen=True, slots=True)
class Recovered:
    """A service is ready again."""

    service: str


@dataclass(frozen=True, slots=True)
class Died:
    """A service ended unasked; it starts again after `restart_delay` seconds, None: never."""

    service: str
    cause: str
    last_lines: tuple[str, ...]
    restart_delay: float | None


StackEvent = LogLine | Started | Recovered | Died
