"""From single measurements of the link to the rows of the result. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from bench.result import Against, Row

OURS: Final = "Petiole"
OTHERS: Final = ("raw durable", "raw classic")
_FROM_LINK_UP_GOAL = 0.5
_HUB_BACK_GOAL = 0.3
_NOTICED_GOAL = 1.1
"""At most so many times what the first of the others takes."""
_SHARES = (("p50", 0.5), ("p95", 0.95))


@dataclass(frozen=True, slots=True)
class Fault:
    """What breaks and for how many seconds."""

    what: str
    kind: Literal["hub", "leaf", "cut", "stall"]
    seconds: float

    @property
    def name(self) -> str:
        """What stands in the rows."""
        return f"{self.what} {self.seconds:.0f} s"


@dataclass(frozen=True, slots=True)
class Measured:
    """One fault as one side came through it; times are seconds since 1970, `noticed` seconds from the
    fault's begin."""

    fault: Fault
    side: str
    restored: float
    link_up: float | None
    caught_up: float | None
    verified: float | None
    noticed: float | None

    def __str__(self) -> str:
        parts = {
            "noticed": self.noticed,
            "link up": _between(self.restored, self.link_up),
            "caught up": self.since_restored(),
            "verified": self.verified_since_restored(),
        }
        said = ", ".join(f"{what} {at:.2f} s" for what, at in parts.items() if at is not None)
        return f"{self.side}: {said}"

    def since_restored(self) -> float | None:
        return _between(self.restored, self.caught_up)

    def since_link_up(self) -> float | None:
        return _between(self.link_up, self.caught_up)

    def compared_since_link_up(self) -> float | None:
        """Seconds from link-up until the agent said that the link flows, whatever had yet to drain."""
        return _between(self.link_up, self.verified)

    def verified_since_restored(self) -> float | None:
        return _between(self.restored, self._right())

    def verified_since_link_up(self) -> float | None:
        return _between(self.link_up, self._right())

    def _right(self) -> float | None:
        if self.caught_up is None or self.verified is None:
            return None
        return max(self.caught_up, self.verified)


Counts = dict[tuple[str, str], int]


def rows(
    faults: Iterable[Fault], measured: Sequence[Measured], lost: Counts, doubled: Counts, way: str
) -> list[Row]:
    """The rows; `way` says how a half-open link was made."""
    found = []
    for fault in faults:
        mine = [one for one in measured if one.fault == fault]
        named = f"{fault.name} ({way})" if fault.kind == "stall" else fault.name
        back = {"hub": "the hub's process starts", "leaf": "the leaf server's process starts"}.get(
            fault.kind, "packets pass again"
        )
        goal = _HUB_BACK_GOAL if fault.kind == "hub" else None
        found += _noticed(named, mine, fault)
        found += _beside(f"{named}: caught up after {back}", mine, Measured.since_restored, goal)
        found += _beside(
            f"{named}: caught up after link-up", mine, Measured.since_link_up, _FROM_LINK_UP_GOAL
        )
        found += _ours(
            f"{named}: caught up and verified after {back}",
            mine,
            Measured.verified_since_restored,
            Measured.since_restored,
            goal,
        )
        found += _ours(
            f"{named}: caught up and verified after link-up",
            mine,
            Measured.verified_since_link_up,
            Measured.since_link_up,
            _FROM_LINK_UP_GOAL,
        )
        found += _ours(
            f"{named}: compared and flowing after link-up",
            mine,
            Measured.compared_since_link_up,
            Measured.since_link_up,
            None,
        )
        for what, counts in (("lost", lost), ("doubled", doubled)):
            for other in OTHERS:
                value, against = counts.get((fault.name, OURS), 0), counts.get((fault.name, other), 0)
                found.append(
                    Row(
                        f"{named}: {what}",
                        value,
                        "messages",
                        against=Against(other, against),
                        must=0,
                        least=True,
                    )
                )
    return found


def _noticed(named: str, measured: list[Measured], fault: Fault) -> list[Row]:
    goal = _NOTICED_GOAL if fault.kind == "stall" else None
    return _beside(f"{named}: noticed after it began", measured, lambda one: one.noticed, goal)


def _beside(
    what: str, measured: list[Measured], seconds: Callable[[Measured], float | None], goal: float | None
) -> list[Row]:
    """A row a share and alternative."""
    found = []
    for share, part in _SHARES:
        ours = _share(_values(measured, OURS, seconds), part)
        for other in OTHERS:
            theirs = _share(_values(measured, other, seconds), part)
            if ours is not None:
                against = None if theirs is None else Against(f"{other}, left alone", theirs)
                aim = goal if against is not None and other == OTHERS[0] else None
                found.append(Row(f"{what}, {share}", ours, "s", aim, against, least=True))
    return found


def _ours(
    what: str,
    measured: list[Measured],
    seconds: Callable[[Measured], float | None],
    unverified: Callable[[Measured], float | None],
    goal: float | None,
) -> list[Row]:
    """What only the agent says, beside the first of the others, which catches up and verifies nothing."""
    values, theirs = _values(measured, OURS, seconds), _values(measured, OTHERS[0], unverified)
    found = []
    for share, part in _SHARES:
        value, other = _share(values, part), _share(theirs, part)
        if value is not None:
            against = None if other is None else Against(f"{OTHERS[0]}, caught up", other)
            aim = None if against is None else goal
            found.append(Row(f"{what}, {share}", value, "s", aim, against, least=True))
    unsaid = sum(one.side == OURS and one.verified is None for one in measured)
    return [*found, Row(f"{what}: the agent did not say so", unsaid, "rounds", must=0, least=True)]


def _values(measured: list[Measured], side: str, seconds: Callable[[Measured], float | None]) -> list[float]:
    found = [seconds(one) for one in measured if one.side == side]
    return sorted(value for value in found if value is not None)


def _share(values: list[float], part: float) -> float | None:
    """The smallest value that is at or above this part of all (nearest rank); `values` are in order."""
    return values[max(0, math.ceil(part * len(values)) - 1)] if values else None


def _between(since: float | None, until: float | None) -> float | None:
    return None if since is None or until is None else until - since
