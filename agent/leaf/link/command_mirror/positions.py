"""Where local programs are in the commands, so that they go on there when the mirror is recreated. Pure.

A consumer of the mirror goes with it. What it has acknowledged is kept by the identity of each command: its
sequence, and when the hub stored it. A hub that was restored from a backup uses sequences again, for other
commands, and the old mirror may hold some of both. So a program goes on from the first command that it has
not acknowledged, and what it has acknowledged after that is taken out of the new mirror.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import Struct

from agent.contract import CommandKey

VERSION: Final = 1
HELD_UNTIL: Final = "2200-01-01T00:00:00Z"
"""Until when a consumer is paused that has no place yet. Nothing else sets this time, so it also tells such a
consumer from one that has its place: whoever lifts it gives it the place first."""
LEAVING_UNTIL: Final = "2201-01-01T00:00:00Z"
"""Until when a consumer is paused whose mirror is about to be deleted. It has its place."""
_HELD, _LEAVING = datetime.fromisoformat(HELD_UNTIL), datetime.fromisoformat(LEAVING_UNTIL)


class ConsumerPosition(Struct, frozen=True):
    """A durable consumer of the mirror: its configuration, the last sequence up to which all is acknowledged,
    and commands that were in the mirror, the oldest first: all that were for it, or only one up to which it
    has acknowledged all and which the hub was found to hold."""

    config: dict[str, Any]
    floor: int
    commands: list[CommandKey] = []

    @property
    def top(self) -> int:
        """The last sequence that says something of the place."""
        return max(self.floor, self.commands[-1][0] if self.commands else 0)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a consumer goes on in a new mirror: from `start`; `again` it would be handed after that although
    it has acknowledged it; `wanted` is all that it is to be handed, `unread` what it did not read in the old
    mirror and is not in the new one."""

    start: int
    again: frozenset[int]
    wanted: frozenset[int]
    unread: list[int]


def placement(
    place: ConsumerPosition,
    there: Mapping[int, int],
    every: Mapping[int, int],
    taken_out: Collection[CommandKey] = (),
) -> Placement:
    """Where a consumer goes on in a mirror that is `there` for it, of `every` command in the mirror (times by
    sequence), after one of which these were `taken_out`."""
    known = {seq: time for seq, time in place.commands if seq <= place.floor}
    first = min(known, default=0)
    # All before the oldest command that is known was acknowledged, if the hub's history is the same up to it.
    before = first if first and every.get(first) == known[first] else 0
    out = set(taken_out)
    acknowledged = {
        seq for seq, time in there.items() if seq < before or known.get(seq) == time or (seq, time) in out
    }
    wanted = there.keys() - acknowledged
    start = min(wanted, default=max(there, default=0) + 1)
    return Placement(
        start,
        frozenset(seq for seq in acknowledged if seq > start),
        frozenset(wanted),
        [seq for seq, time in place.commands if seq > place.floor and there.get(seq) != time],
    )


def superfluous(placements: Collection[Placement]) -> set[int]:
    """The commands that some consumer would be handed again and none is to be handed."""
    again = {seq for one in placements for seq in one.again}
    return again.difference(*(one.wanted for one in placements))


class Stage(StrEnum):
    """How far a recreation of the mirror has come."""

    NONE = "none"
    DUE = "due"
    """The places are kept; the old mirror may be deleted at any time."""
    HELD = "held"
    """The new mirror has each consumer, paused, and nothing was delivered before they were."""


class ConsumerPositions(Struct):
    """The whole file: the consumers of the mirror by name, when that mirror was created (empty where there
    never was one), how far its replacement by another is, and the commands that were `taken_out` of it or one
    before it, since each consumer that they are for has acknowledged them; `last_out` is the last sequence of
    those of this one."""

    version: int = VERSION
    stage: Stage = Stage.NONE
    mirror: str = ""
    taken_out: list[CommandKey] = []
    last_out: int = 0
    consumers: dict[str, ConsumerPosition] = {}

    def encode(self) -> bytes:
        """The places as they are written."""
        return msgspec.json.encode(self)

    @property
    def top(self) -> int:
        """The last sequence that the new mirror must have reached, if the hub holds it, to place them all."""
        return max((place.top for place in self.consumers.values()), default=0)


def parse_positions(data: bytes) -> ConsumerPositions:
    """Read the file; raises `ValueError` for one that is damaged or of another version."""
    places = msgspec.json.decode(data, type=ConsumerPositions)
    if places.version != VERSION:
        raise ValueError(f"it is of version {places.version}, this release reads {VERSION}")
    return places


def kept_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A consumer's configuration as a program gave it: without what the server adds."""
    given = dict(config)
    metadata = {key: value for key, value in (given.get("metadata") or {}).items() if key[:6] != "_nats."}
    given.pop("metadata", None)
    return given | ({"metadata": metadata} if metadata else {})


def is_held(config: Mapping[str, Any]) -> bool:
    """Whether a consumer waits for its place."""
    return _until(config) == _HELD


def is_leaving(config: Mapping[str, Any]) -> bool:
    """Whether a consumer was paused before its mirror is deleted."""
    return _until(config) == _LEAVING


def paused_until(config: Mapping[str, Any]) -> str | None:
    """Until when its owner has paused a consumer."""
    return None if is_held(config) or is_leaving(config) else config.get("pause_until")


def _until(config: Mapping[str, Any]) -> datetime | None:
    until = config.get("pause_until")
    return None if until is None else datetime.fromisoformat(until)


def movable(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a consumer in an empty mirror, from which the server lets it be moved on: it does
    not where a consumer begins with the newest command, or the newest of each subject."""
    fixed = str(config.get("deliver_policy", "all")) in ("new", "last", "last_per_subject")
    return placed_at(config, 1) if fixed else dict(config)


def placed_at(config: Mapping[str, Any], start: int) -> dict[str, Any]:
    """The configuration of a consumer that begins at `start`, whatever its deliver policy was."""
    given = {key: value for key, value in config.items() if key != "opt_start_time"}
    return given | {"deliver_policy": "by_start_sequence", "opt_start_seq": start}
