"""Who may announce a domain, and who else does: another machine, or a copy of this one. Pure; its times are
monotonic seconds that the caller gives.

A copied disk brings the machine id along, so only the run tells two such machines apart. An agent that is
started again brings a new run and its old one is never heard again; two machines take turns. One old
announcement may have been under way when its agent died: then the old run comes back once, and the new one
after it. The third time that a run comes back is the sign.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct, field

from agent.hub.registrar.records import FRESH

_RETURNS: Final = 3
_RUNS: Final = 8


class _Runs(Struct):
    """The runs that announced one domain, the eldest first, each with when it was last heard."""

    heard: dict[str, float] = field(default_factory=dict)
    current: str = ""
    returned: list[float] = field(default_factory=list)
    copied: bool = False


class DomainOwnership:
    def __init__(self) -> None:
        self._heard: dict[str, float] = {}
        self._rivals: dict[str, float] = {}
        self._runs: dict[str, _Runs] = {}

    def begin(self, domain: str, run: str, now: float) -> None:
        """The run that a record names counts as heard, so that no other machine can take its domain first."""
        self._heard.setdefault(domain, now)
        if domain not in self._runs:
            self._runs[domain] = _Runs({run: now}, run)

    def heard(self, domain: str, now: float) -> None:
        self._heard[domain] = now

    def heard_ago(self, domain: str, now: float) -> float:
        """Seconds since the machine that owns a domain was heard."""
        return now - self._heard.get(domain, float("-inf"))

    def heard_at(self) -> dict[str, float]:
        """When the machine that owns each domain was heard."""
        return dict(self._heard)

    def claimed(self, domain: str, now: float) -> None:
        """Somebody announced a domain that is not theirs."""
        self._rivals[domain] = now

    def contested(self, domain: str, now: float) -> bool:
        """Whether somebody lately announced a domain that is not theirs."""
        return now - self._rivals.get(domain, float("-inf")) < FRESH

    def settled(self, now: float) -> list[str]:
        """The domains that no other machine claims any more, each returned once."""
        gone = [domain for domain, at in self._rivals.items() if now - at >= FRESH]
        for domain in gone:
            del self._rivals[domain]
            if domain in self._runs:
                self._runs[domain].copied = False
                self._runs[domain].returned.clear()
        return gone

    def goes_on(self, domain: str, run: str, now: float) -> bool:
        """Whether this run alone announces a domain, as when it was heard last; counts the announcement if
        so."""
        runs = self._runs.get(domain)
        if runs is None or runs.copied or runs.current != run or domain in self._rivals:
            return False
        runs.heard[run] = self._heard[domain] = now
        return True

    def is_copied(self, domain: str) -> bool:
        """Whether two machines of one id take turns with a domain."""
        return domain in self._runs and self._runs[domain].copied

    def is_copy(self, domain: str, run: str, now: float) -> bool:
        """Count an announcement of the machine that a domain belongs to; whether it comes from a copy of that
        machine, and not from the run that was there first."""
        runs = self._runs.setdefault(domain, _Runs())
        runs.heard = {other: at for other, at in runs.heard.items() if now - at < FRESH}
        if run != runs.current and run in runs.heard:
            runs.returned = [at for at in runs.returned if now - at < FRESH] + [now]
            runs.copied = runs.copied or len(runs.returned) >= _RETURNS
        if run in runs.heard or len(runs.heard) < _RUNS:
            runs.heard[run] = now
        runs.current = run
        if not runs.copied:
            return False
        return run != next(iter(runs.heard), run)
