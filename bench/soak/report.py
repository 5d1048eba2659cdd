"""What a soak shows, and what it must have shown."""

from collections import Counter
from dataclasses import dataclass

from bench.results import Figure
from bench.soak.fault_kind import KILLS, FaultKind
from bench.soak.tally import Tally

LEAST_ANSWERED = 0.95


@dataclass(frozen=True, slots=True)
class Bars:
    """What a soak must reach; nothing may be wrong or leak."""

    answers: int
    kills: int

    def missed_by(self, tally: Tally) -> list[str]:
        """In words, for people."""
        share = tally.answered / max(tally.sent, 1)
        num_kills = sum(_by_role(tally, kind).total() for kind in KILLS)
        bars = {
            f"{len(tally.wrong)} wrong answers": bool(tally.wrong),
            f"{tally.leaked} leaked blocks": tally.leaked != 0,
            f"only {tally.answered} answers": tally.answered < self.answers,
            f"only {share:.1%} answered": share < LEAST_ANSWERED,
            f"only {num_kills} kills": num_kills < self.kills,
        }
        return [text for text, is_missed in bars.items() if is_missed]


def figures_of(tally: Tally, seconds: float) -> list[Figure]:
    """Counts, with their causes as notes."""
    kills = sum((_by_role(tally, kind) for kind in KILLS), Counter[str]())
    return [
        Figure("soak.sent", tally.sent, "requests"),
        Figure("soak.answered", tally.answered, "requests"),
        _by_cause("soak.abandoned", "requests, by their clients", tally.abandoned),
        _by_cause("soak.refused", "requests", tally.refused),
        _by_cause("soak.retried", "attempts, by gateways", tally.retried),
        _by_cause("soak.resubmitted", "requests, by their clients", tally.resubmitted),
        Figure("soak.wrong", len(tally.wrong), "answers"),
        Figure("soak.leaked", tally.leaked, "blocks"),
        _by_cause("soak.kills", "processes", kills),
        _by_cause("soak.kills.moved", "processes", _by_role(tally, FaultKind.MOVE)),
        _by_cause("soak.freezes", "processes", _by_role(tally, FaultKind.FREEZE)),
        _by_cause("soak.drains", "processes", _by_role(tally, FaultKind.DRAIN)),
        Figure("soak.descriptors", tally.descriptors, "open files, the most of a process"),
        Figure("soak.seconds", round(seconds), "s"),
    ]


def _by_role(tally: Tally, kind: FaultKind) -> Counter[str]:
    return Counter({str(role): n for (role, each), n in tally.faults.items() if each == kind})


def _by_cause(name: str, unit: str, counts: Counter[str]) -> Figure:
    note = ", ".join(f"{cause} {number}" for cause, number in counts.most_common())
    return Figure(name, counts.total(), unit, note=note or None)
