"""Finds silent sources of linked leaves, to be readded so the hub asks at once instead of after five seconds.
Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final, Literal

import structlog
from msgspec import Struct, field
from msgspec.structs import replace

from agent.hub.registrar.aggregate import ALIVE
from agent.jetstream.info import STALLED, CopyStatus

PATIENCE: Final = 6.0
"""Seconds for a source to show life; heartbeats queue behind data, and readding resends."""
NEW_PATIENCE: Final = 1.5
"""For new sources, behind which nothing queues."""
GRACE: Final = 0.25
_HOPELESS_TRIES = 3
_FIRST_WAIT, _LONGEST_WAIT = 3.0, 300.0
_NEVER_HEARD = (
    "its leaf is linked, but the hub never hears from it: the link consumer is missing on the leaf, or one "
    "side lacks a permission of the link ($JSC.R.>, the deliver subject, the consumer's RESET), which "
    "neither server says; start both servers with the configuration that petiole renders"
)
_NAMED: Final = 20

log = structlog.get_logger("registrar")


class Suspect(Struct, frozen=True):
    """A silent source of a linked leaf. Monotonic seconds."""

    since: float
    """Earlier signs do not count."""
    not_before: float = 0.0
    """Earliest removal."""
    tries: int = 0
    """Readdings so far."""
    tried_at: float = 0.0

    def tried(self, now: float) -> Suspect:
        """Return it after a readding."""
        return replace(self, since=now, tries=self.tries + 1, tried_at=now)

    @property
    def hopeless(self) -> bool:
        """Whether a person should look."""
        return self.tries >= _HOPELESS_TRIES


def judge(suspect: Suspect, state: CopyStatus | None, now: float) -> Literal["well", "wait", "again"]:
    """Judge a suspect; a source heard before gets time to return."""
    if state is None:
        return "wait"
    if state.active is not None and state.active < now - suspect.since:
        return "well"
    if suspect.tries == 0:
        due = max(suspect.not_before, suspect.since + (0.0 if state.active is None else GRACE))
    else:
        due = suspect.tried_at + _wait_after(suspect.tries)
    return "again" if now >= due else "wait"


def next_look(suspect: Suspect, now: float) -> float:
    """Return when to look again."""
    return suspect.tried_at + _wait_after(suspect.tries) if suspect.hopeless else now + GRACE


def _wait_after(tries: int) -> float:
    """Return growing pauses, as each try scans and resends."""
    return min(_FIRST_WAIT * 2.0 ** min(tries - 1, 10), _LONGEST_WAIT)


def trouble(state: CopyStatus) -> str | None:
    """Explain the server's error of a source, or None."""
    if not state.error:
        return None
    if state.error_code == STALLED:
        return (
            f"the hub cannot acknowledge what it stores ({state.error}): the permission for $JS.FC of this "
            f"leaf's stream is missing on the link; start both servers with what petiole renders"
        )
    return f"the hub's server says of its source: {state.error}"


class Verdicts(Struct):
    """Results of a look by source."""

    again: set[str] = field(default_factory=set)
    """To readd."""
    well: set[str] = field(default_factory=set)
    hopeless: set[str] = field(default_factory=set)
    """Newly for a person."""
    saved: set[str] = field(default_factory=set)
    """Flowing again after that."""


def say(verdicts: Verdicts, troubles: Callable[[], Mapping[str, str]]) -> None:
    """Log hopeless and recovered sources once."""
    if verdicts.saved:
        names = sorted(verdicts.saved)
        log.info("sources flow again", sources=len(names), names=names[:_NAMED])
    if verdicts.hopeless:
        names = sorted(verdicts.hopeless)
        words = f"sources do not flow: {troubles().get(names[0])}"
        log.warning(words, sources=len(names), names=names[:_NAMED])


class StalledSources:
    """An aggregate's linked sources, and the silent ones."""

    def __init__(self) -> None:
        self._linked: set[str] = set()
        self._suspects: dict[str, Suspect] = {}
        self._hopeless: set[str] = set()

    def linked(self, name: str, since: float) -> None:
        """Expect a sign of life after `since`; resets tries."""
        self._linked.add(name)
        self._suspects[name] = Suspect(since)

    def unlinked(self, name: str) -> None:
        """Note a lost link."""
        self._linked.discard(name)
        self._suspects.pop(name, None)

    def silent(self, name: str, now: float) -> bool:
        """Note a silent source; returns whether new."""
        if name in self._suspects:
            return False
        self._suspects[name] = Suspect(now, not_before=now + PATIENCE)
        return True

    def changed(self, name: str, now: float) -> None:
        """Reset tries of a new source."""
        self._hopeless.discard(name)
        if name in self._linked or name in self._suspects:
            self._suspects[name] = Suspect(now, not_before=now + NEW_PATIENCE)

    def look(self, states: Mapping[str, CopyStatus], asked: float) -> Verdicts:
        """Judge all as of `asked`; newly silent ones become suspects."""
        for name in self._linked - self._suspects.keys():
            if (state := states.get(name)) is not None and not state.alive(ALIVE):
                self._suspects[name] = Suspect(asked, not_before=asked + PATIENCE)
        found = Verdicts()
        for name, suspect in self._suspects.items():
            verdict = judge(suspect, states.get(name), asked)
            if verdict == "again":
                found.again.add(name)
            elif verdict == "well":
                found.well.add(name)
        for name in found.well:
            del self._suspects[name]
        hopeless = {name for name, suspect in self._suspects.items() if suspect.hopeless}
        found.hopeless = hopeless - self._hopeless
        found.saved = self._hopeless & found.well
        self._hopeless = self._hopeless - found.well | hopeless
        return found

    def return_in(self, states: Mapping[str, CopyStatus]) -> bool:
        """Tell whether a returning source waits for its first readding."""
        return any(
            not suspect.tries and name in states and states[name].active is None
            for name, suspect in self._suspects.items()
        )

    def tried(self, names: Collection[str], now: float) -> None:
        """Note readdings."""
        for name in names:
            if name in self._suspects:
                self._suspects[name] = self._suspects[name].tried(now)

    def next_look(self, now: float) -> float | None:
        """Return the next look, or None."""
        return min((next_look(suspect, now) for suspect in self._suspects.values()), default=None)

    def hopeless(self) -> dict[str, str]:
        """Return sources for a person, with reasons."""
        return dict.fromkeys(self._hopeless, _NEVER_HEARD)
