"""What a soak has counted."""

from collections import Counter
from dataclasses import dataclass, field

from batonctl.service_spec import Role
from bench.service import Service
from bench.soak.fault_kind import FaultKind
from bench.soak.pages import retries_of


@dataclass(slots=True)
class Tally:
    """Requests by what became of them; counters are by cause.

    ``retried`` counts new attempts of gateways, ``resubmitted`` what clients sent to another one.
    """

    sent: int = 0
    answered: int = 0
    abandoned: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    retried: Counter[str] = field(default_factory=Counter)
    resubmitted: Counter[str] = field(default_factory=Counter)
    faults: Counter[tuple[Role, FaultKind]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    leaked: int = 0
    descriptors: int = 0

    async def note_retries(self, gateway: Service) -> None:
        """Adds those of a gateway that is about to end."""
        self.retried += await retries_of(gateway)
