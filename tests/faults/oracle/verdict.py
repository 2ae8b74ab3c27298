"""What the oracle says in the end. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Promise(StrEnum):
    """What is promised of every reading, and what is demanded of a case."""

    CONSERVATION = "conservation"
    """What was acknowledged is in the table, or named by the audit with its reason."""
    INTEGRITY = "integrity"
    """It is there as it was sent."""
    NO_INVENTION = "no invention"
    """Nothing is there that was not sent."""
    ONCE = "exactly once"
    ORDER = "order"
    """A device's readings of one life are in the order in which it sent them."""
    LIVENESS = "liveness"
    """All of it came within the bound."""
    HONESTY = "honesty"
    """Ledger, metrics and audit say what is so."""
    FAULT = "the fault happened"


@dataclass(frozen=True, slots=True)
class Violation:
    """One sentence that says what was broken and by which readings."""

    promise: Promise
    sentence: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.sentence}"


@dataclass(slots=True)
class Verdict:
    """Counts are of readings. `lost` were acknowledged as stored, are in no table, and no report names them;
    `named` are gone as well, and the audit says so; `unseen` are gone with a store to which their device had
    published them after the agent's last look, so that nobody but the device can name them; `doubled` are
    there more than once."""

    sent: int = 0
    acknowledged: int = 0
    lost: int = 0
    named: int = 0
    unseen: int = 0
    doubled: int = 0
    violations: list[Violation] = field(default_factory=list)

    def broken(self, promise: Promise, sentence: str) -> None:
        """Note a violation."""
        self.violations.append(Violation(promise, sentence))

    @property
    def kept(self) -> bool:
        """Whether every promise was kept."""
        return not self.violations

    def __str__(self) -> str:
        if self.kept:
            return f"{self.acknowledged} of {self.sent} readings acknowledged, every promise kept"
        return "\n".join(map(str, self.violations))
