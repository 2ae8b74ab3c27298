"""The positions of local programs in the commands, at which they resume when the mirror is recreated. Pure.

A consumer is deleted with its mirror. What it has acknowledged is saved by the identity of each command: its
sequence, and when the hub stored it. A hub that was restored from a backup uses sequences again, for other
commands, and the old mirror may hold some of both. So a program resumes at the first command that it has not
acknowledged, and what it has acknowledged after that is deleted from the new mirror.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import Struct

from agent.contract import CommandKey

VERSION: Final = 1
HELD_UNTIL: Final = "2200-01-01T00:00:00Z"
"""Until when a consumer without a position is paused. Nothing else sets this time, so it also marks such a
consumer: it gets its position before the pause is lifted."""
LEAVING_UNTIL: Final = "2201-01-01T00:00:00Z"
"""Until when a consumer is paused whose mirror is about to be deleted. It has its position."""
_HELD, _LEAVING = datetime.fromisoformat(HELD_UNTIL), datetime.fromisoformat(LEAVING_UNTIL)


class ConsumerPosition(Struct, frozen=True):
    """A durable consumer of the mirror."""

    config: dict[str, Any]
    floor: int
    """The last sequence up to which all is acknowledged."""
    commands: list[CommandKey] = []
    """Commands that were in the mirror, the oldest first: all that were for this consumer, or only one up to
    which it has acknowledged all and which the hub was found to hold."""
    above: list[int] = []
    """The sequences above `floor` that it has acknowledged, where that is known."""

    def has_acknowledged(self, seq: int) -> bool:
        """Whether it has acknowledged the command of this sequence."""
        return seq <= self.floor or seq in self.above

    @property
    def top(self) -> int:
        """The last sequence on which the position depends."""
        return max(self.floor, self.commands[-1][0] if self.commands else 0)


class Placement(Struct, frozen=True):
    """Where a consumer resumes in a new mirror."""

    start: int
    redelivered: frozenset[int]
    """What it would be handed after `start` although it has acknowledged it."""
    wanted: frozenset[int]
    """All that it is to be handed."""
    unread: list[int]
    """What it did not read in the old mirror and is not in the new one."""


def placement(
    position: ConsumerPosition,
    matching: Mapping[int, int],
    all_commands: Mapping[int, int],
    taken_out: Collection[CommandKey] = (),
) -> Placement:
    """Where a consumer resumes in a mirror that holds `all_commands`, of which the `matching` ones are for it
    (times by sequence), after a mirror from which the commands `taken_out` were deleted."""
    acked_times = {seq: time for seq, time in position.commands if position.has_acknowledged(seq)}
    first = min((seq for seq in acked_times if seq <= position.floor), default=0)
    # All before the oldest saved command up to the floor was acknowledged, if the hub's history is the same.
    same_before = first if first and all_commands.get(first) == acked_times[first] else 0
    deleted = set(taken_out)
    acknowledged = {
        seq
        for seq, time in matching.items()
        if seq < same_before or acked_times.get(seq) == time or (seq, time) in deleted
    }
    wanted = matching.keys() - acknowledged
    start = min(wanted, default=max(matching, default=0) + 1)
    return Placement(
        start,
        frozenset(seq for seq in acknowledged if seq > start),
        frozenset(wanted),
        [
            seq
            for seq, time in position.commands
            if not position.has_acknowledged(seq) and matching.get(seq) != time
        ],
    )


def acknowledged_above(position: ConsumerPosition, delivered: int, pending: int) -> list[int]:
    """Which commands a consumer has acknowledged above its floor. It was handed all up to `delivered`, and
    `pending` of them are not acknowledged. The server does not name them, but the floor ends before the
    first: so they are known if there is only one. A command that was handed out `max_deliver` times does not
    count as pending although it is not acknowledged."""
    if pending != 1 or int(position.config.get("max_deliver") or 0) > 0:
        return []
    above = [seq for seq, _ in position.commands if position.floor < seq <= delivered]
    return above[1:]


def superfluous(placements: Collection[Placement]) -> set[int]:
    """The commands that a consumer would be handed again and none is to be handed."""
    redelivered = {seq for consumer in placements for seq in consumer.redelivered}
    return redelivered.difference(*(consumer.wanted for consumer in placements))


class Stage(StrEnum):
    """How far a recreation of the mirror has come."""

    NONE = "none"
    DUE = "due"
    """The positions are saved; the old mirror may be deleted at any time."""
    HELD = "held"
    """The new mirror has each consumer, paused; nothing was delivered before."""


class ConsumerPositions(Struct):
    """The content of the file."""

    version: int = VERSION
    stage: Stage = Stage.NONE
    """How far the replacement of the mirror has come."""
    mirror: str = ""
    """When the mirror was created, empty if there never was one."""
    taken_out: list[CommandKey] = []
    """The commands deleted from it or an earlier mirror, since each consumer they are for has acknowledged
    them."""
    last_out: int = 0
    """The last sequence deleted from this mirror."""
    consumers: dict[str, ConsumerPosition] = {}

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @property
    def top(self) -> int:
        """The sequence that the new mirror must reach, if the hub holds it, before all consumers can
        resume."""
        return max((position.top for position in self.consumers.values()), default=0)


def parse_positions(data: bytes) -> ConsumerPositions:
    """Read the file; raises `ValueError` for one that is damaged or of another version."""
    positions = msgspec.json.decode(data, type=ConsumerPositions)
    if positions.version != VERSION:
        raise ValueError(f"it is of version {positions.version}, this release reads {VERSION}")
    return positions


def kept_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A consumer's configuration as a program gave it, without what the server adds."""
    own = dict(config)
    metadata = {key: value for key, value in (own.get("metadata") or {}).items() if key[:6] != "_nats."}
    own.pop("metadata", None)
    return own | ({"metadata": metadata} if metadata else {})


def is_held(config: Mapping[str, Any]) -> bool:
    """Whether a consumer waits for its position."""
    return _until(config) == _HELD


def is_leaving(config: Mapping[str, Any]) -> bool:
    """Whether a consumer is paused because its mirror is about to be deleted."""
    return _until(config) == _LEAVING


def paused_until(config: Mapping[str, Any]) -> str | None:
    """Until when its owner has paused a consumer."""
    return None if is_held(config) or is_leaving(config) else config.get("pause_until")


def _until(config: Mapping[str, Any]) -> datetime | None:
    until = config.get("pause_until")
    return None if until is None else datetime.fromisoformat(until)


def movable(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a consumer in an empty mirror such that the server permits moving it; it does not
    if the consumer begins with the newest command, or the newest of each subject."""
    fixed = str(config.get("deliver_policy", "all")) in ("new", "last", "last_per_subject")
    return placed_at(config, 1) if fixed else dict(config)


def placed_at(config: Mapping[str, Any], start: int) -> dict[str, Any]:
    """The configuration of a consumer that begins at `start` instead of by its own deliver policy."""
    own = {key: value for key, value in config.items() if key != "opt_start_time"}
    return own | {"deliver_policy": "by_start_sequence", "opt_start_seq": start}
