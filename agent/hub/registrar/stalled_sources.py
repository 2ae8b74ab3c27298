"""Which sources do not flow though their leaf is linked, and which of them to remove and add again.

To remove a source and add it again makes the hub ask the leaf at once instead of after a timeout of five
seconds. Pure: its observations and monotonic times come from the caller.
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
"""Seconds for a source that was not seen to break to show itself. On a slow line heartbeats queue behind
data, and a source that is added again makes the leaf send all of that once more."""
NEW_PATIENCE: Final = 1.5
"""The same for a source that is another one than before, behind which nothing queues."""
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
    """A source whose leaf is linked and that has not shown itself. Times are monotonic seconds."""

    since: float
    """Only a sign of life after this counts."""
    not_before: float = 0.0
    """Before this it is not removed."""
    tries: int = 0
    """How often it was removed and added again."""
    tried_at: float = 0.0

    def tried(self, now: float) -> Suspect:
        """The same after its source was removed and added again."""
        return replace(self, since=now, tries=self.tries + 1, tried_at=now)

    @property
    def hopeless(self) -> bool:
        """Whether adding it again has not helped so often that a person should look."""
        return self.tries >= _HOPELESS_TRIES


def judge(suspect: Suspect, state: CopyStatus | None, now: float) -> Literal["well", "wait", "again"]:
    """Whether a suspect source flows, or is to be removed and added again. A source that was never heard
    cannot be coming back by itself soon; one that was is given a moment to show itself."""
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
    """When to look at a suspect again."""
    return suspect.tried_at + _wait_after(suspect.tries) if suspect.hopeless else now + GRACE


def _wait_after(tries: int) -> float:
    """Each try scans the aggregate and has the leaf send again, so what does not help is done ever more
    rarely."""
    return min(_FIRST_WAIT * 2.0 ** min(tries - 1, 10), _LONGEST_WAIT)


def trouble(state: CopyStatus) -> str | None:
    """What the server's own error of a source means, None where it has none."""
    if not state.error:
        return None
    if state.error_code == STALLED:
        return (
            f"the hub cannot acknowledge what it stores ({state.error}): the permission for $JS.FC of this "
            f"leaf's stream is missing on the link; start both servers with what petiole renders"
        )
    return f"the hub's server says of its source: {state.error}"


class Verdicts(Struct):
    """What became of the suspects at one look, by the names of their sources."""

    again: set[str] = field(default_factory=set)
    """To be removed and added again."""
    well: set[str] = field(default_factory=set)
    hopeless: set[str] = field(default_factory=set)
    """From now on a person has to look after them."""
    saved: set[str] = field(default_factory=set)
    """Flow again after a person was to look after them."""


def say(verdicts: Verdicts, troubles: Callable[[], Mapping[str, str]]) -> None:
    """Log which sources a person should look after and which are well again, each once; `troubles` gives the
    sentence of a source."""
    if verdicts.saved:
        names = sorted(verdicts.saved)
        log.info("sources flow again", sources=len(names), names=names[:_NAMED])
    if verdicts.hopeless:
        names = sorted(verdicts.hopeless)
        words = f"sources do not flow: {troubles().get(names[0])}"
        log.warning(words, sources=len(names), names=names[:_NAMED])


class StalledSources:
    """The sources of one aggregate whose leaves are linked, and those among them that are silent."""

    def __init__(self) -> None:
        self._linked: set[str] = set()
        self._suspects: dict[str, Suspect] = {}
        self._hopeless: set[str] = set()

    def linked(self, name: str, since: float) -> None:
        """The leaf of a source is linked, so the source has to show a sign of life after `since`; what was
        tried before counts no more."""
        self._linked.add(name)
        self._suspects[name] = Suspect(since)

    def unlinked(self, name: str) -> None:
        """The leaf of a source is not linked any more."""
        self._linked.discard(name)
        self._suspects.pop(name, None)

    def silent(self, name: str, now: float) -> bool:
        """A source shows no sign of life though its leaf is linked; whether that is news."""
        if name in self._suspects:
            return False
        self._suspects[name] = Suspect(now, not_before=now + PATIENCE)
        return True

    def changed(self, name: str, now: float) -> None:
        """The source of a leaf is another one than before, so what was tried before counts no more."""
        self._hopeless.discard(name)
        if name in self._linked or name in self._suspects:
            self._suspects[name] = Suspect(now, not_before=now + NEW_PATIENCE)

    def look(self, states: Mapping[str, CopyStatus], asked: float) -> Verdicts:
        """Judge all suspects by what was seen at `asked`; a linked source that has fallen silent becomes
        one."""
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
        """Whether a linked leaf waits for a source that has not been heard since the hub's server started,
        and was not added again yet."""
        return any(
            not suspect.tries and name in states and states[name].active is None
            for name, suspect in self._suspects.items()
        )

    def tried(self, names: Collection[str], now: float) -> None:
        """These sources were removed and added again."""
        for name in names:
            if name in self._suspects:
                self._suspects[name] = self._suspects[name].tried(now)

    def next_look(self, now: float) -> float | None:
        """When to look again, None where nothing is suspect."""
        return min((next_look(suspect, now) for suspect in self._suspects.values()), default=None)

    def hopeless(self) -> dict[str, str]:
        """The sources that need a person, and why in words."""
        return dict.fromkeys(self._hopeless, _NEVER_HEARD)
