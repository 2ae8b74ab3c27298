"""Decides who may announce a domain, and detects other machines and copies. Pure; monotonic seconds.

Copied disks share machine ids, so runs decide: two machines take turns. A late announcement lets an old run
return once; the third return proves a copy.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct, field

from agent.hub.registrar.records import FRESH

_RETURNS: Final = 3
_RUNS: Final = 8


class _Runs(Struct):
    """A domain's runs, eldest first, with last times."""

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
        """Count a recorded run as heard, so no other takes its domain."""
        self._heard.setdefault(domain, now)
        if domain not in self._runs:
            self._runs[domain] = _Runs({run: now}, run)

    def heard(self, domain: str, now: float) -> None:
        self._heard[domain] = now

    def heard_ago(self, domain: str, now: float) -> float:
        """Return seconds since the owner was heard."""
        return now - self._heard.get(domain, float("-inf"))

    def heard_at(self) -> dict[str, float]:
        return dict(self._heard)

    def claimed(self, domain: str, now: float) -> None:
        """Note a foreign announcement."""
        self._rivals[domain] = now

    def contested(self, domain: str, now: float) -> bool:
        """Tell whether another machine lately announced the domain."""
        return now - self._rivals.get(domain, float("-inf")) < FRESH

    def settled(self, now: float) -> list[str]:
        """Return domains no longer claimed, once."""
        gone = [domain for domain, at in self._rivals.items() if now - at >= FRESH]
        for domain in gone:
            del self._rivals[domain]
            if domain in self._runs:
                self._runs[domain].copied = False
                self._runs[domain].returned.clear()
        return gone

    def goes_on(self, domain: str, run: str, now: float) -> bool:
        """Count an announcement if this run alone announces; returns whether."""
        runs = self._runs.get(domain)
        if runs is None or runs.copied or runs.current != run or domain in self._rivals:
            return False
        runs.heard[run] = self._heard[domain] = now
        return True

    def is_copied(self, domain: str) -> bool:
        """Tell whether two machines of one id alternate."""
        return domain in self._runs and self._runs[domain].copied

    def is_copy(self, domain: str, run: str, now: float) -> bool:
        """Count an announcement; tells whether it is from a copy, not from the run that was there first."""
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
