"""The result of looking at one thing."""

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """How it stands."""

    OK = "ok"
    # It works, but worse than it could.
    WARNING = "warning"
    FAILED = "failed"
    # Not looked at; the detail says why.
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Check:
    """What was found; `fix` says what to do, for every verdict that is not OK."""

    name: str
    verdict: Verdict
    detail: str
    fix: str = ""


def ok(name: str, detail: str) -> Check:
    """Nothing to do."""
    return Check(name, Verdict.OK, detail)


def warning(name: str, detail: str, fix: str) -> Check:
    """It works, but worse than it could."""
    return Check(name, Verdict.WARNING, detail, fix)


def failed(name: str, detail: str, fix: str) -> Check:
    """It does not work."""
    return Check(name, Verdict.FAILED, detail, fix)


def skipped(name: str, detail: str, fix: str = "") -> Check:
    """It was not looked at."""
    return Check(name, Verdict.SKIPPED, detail, fix)
