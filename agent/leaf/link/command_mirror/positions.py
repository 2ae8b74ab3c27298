"""Computes positions of local programs across recreated mirrors. Pure.

Acknowledged commands are saved by sequence and storage time, since a restored hub reuses sequences. A program
resumes at its first unacknowledged command; later acknowledged ones are deleted from the new mirror.
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
"""Pause end that marks a consumer without position, because nothing else sets this time. The consumer gets
its position before the pause is lifted.
"""
LEAVING_UNTIL: Final = "2201-01-01T00:00:00Z"
"""Pause end that marks a consumer of a mirror to be deleted."""
_HELD, _LEAVING = datetime.fromisoformat(HELD_UNTIL), datetime.fromisoformat(LEAVING_UNTIL)


class ConsumerPosition(Struct, frozen=True):
    """A durable consumer of the mirror."""

    config: dict[str, Any]
    floor: int
    """Sequence up to which all is acknowledged."""
    commands: list[CommandKey] = []
    """Mirrored commands, oldest first: all of this consumer, or one acknowledged and common one."""
    above: list[int] = []
    """Known acknowledged sequences above `floor`."""

    def has_acknowledged(self, seq: int) -> bool:
        return seq <= self.floor or seq in self.above

    @property
    def top(self) -> int:
        """Highest relevant sequence."""
        return max(self.floor, self.commands[-1][0] if self.commands else 0)


class Placement(Struct, frozen=True):
    """A consumer's start in a new mirror."""

    start: int
    redelivered: frozenset[int]
    """Acknowledged commands after `start`."""
    wanted: frozenset[int]
    """Commands to deliver."""
    unread: list[int]
    """Unread commands missing in the new mirror."""


def placement(
    position: ConsumerPosition,
    matching: Mapping[int, int],
    all_commands: Mapping[int, int],
    taken_out: Collection[CommandKey] = (),
) -> Placement:
    """Place a consumer among `all_commands`, its `matching` ones (times by sequence) and those deleted
    (`taken_out`).
    """
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
    """Return commands acknowledged above the floor, if known.

    All up to `delivered` were delivered, `pending` are open. The server does not name open commands, but the
    floor ends before the first: a single open command is known, several are not. Commands delivered
    `max_deliver` times do not count as pending.
    """
    if pending != 1 or int(position.config.get("max_deliver") or 0) > 0:
        return []
    above = [seq for seq, _ in position.commands if position.floor < seq <= delivered]
    return above[1:]


def superfluous(placements: Collection[Placement]) -> set[int]:
    """Return redelivered commands that no consumer wants."""
    redelivered = {seq for consumer in placements for seq in consumer.redelivered}
    return redelivered.difference(*(consumer.wanted for consumer in placements))


class Stage(StrEnum):
    """The progress of a recreation."""

    NONE = "none"
    DUE = "due"
    """Positions are saved; the old mirror may go."""
    HELD = "held"
    """The new mirror has all consumers, paused."""


class ConsumerPositions(Struct):
    """The file's content."""

    version: int = VERSION
    stage: Stage = Stage.NONE
    """Progress of a replacement."""
    mirror: str = ""
    """The mirror's creation time, "" if never."""
    taken_out: list[CommandKey] = []
    """Commands deleted because all their consumers acknowledged them."""
    last_out: int = 0
    """Last deleted sequence."""
    consumers: dict[str, ConsumerPosition] = {}

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @property
    def top(self) -> int:
        """Sequence to reach before all resume."""
        return max((position.top for position in self.consumers.values()), default=0)


def parse_positions(data: bytes) -> ConsumerPositions:
    """Parse the file; raises `ValueError`."""
    positions = msgspec.json.decode(data, type=ConsumerPositions)
    if positions.version != VERSION:
        raise ValueError(f"it is of version {positions.version}, this release reads {VERSION}")
    return positions


def kept_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration without the server's additions."""
    own = dict(config)
    metadata = {key: value for key, value in (own.get("metadata") or {}).items() if key[:6] != "_nats."}
    own.pop("metadata", None)
    return own | ({"metadata": metadata} if metadata else {})


def is_held(config: Mapping[str, Any]) -> bool:
    """Tell whether a consumer waits for its position."""
    return _until(config) == _HELD


def is_leaving(config: Mapping[str, Any]) -> bool:
    """Tell whether its mirror is about to be deleted."""
    return _until(config) == _LEAVING


def paused_until(config: Mapping[str, Any]) -> str | None:
    """Return the owner's pause end."""
    return None if is_held(config) or is_leaving(config) else config.get("pause_until")


def _until(config: Mapping[str, Any]) -> datetime | None:
    until = config.get("pause_until")
    return None if until is None else datetime.fromisoformat(until)


def movable(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration that servers allow to move; starts at the newest are not."""
    fixed = str(config.get("deliver_policy", "all")) in ("new", "last", "last_per_subject")
    return placed_at(config, 1) if fixed else dict(config)


def placed_at(config: Mapping[str, Any], start: int) -> dict[str, Any]:
    """Return a configuration starting at `start`."""
    own = {key: value for key, value in config.items() if key != "opt_start_time"}
    return own | {"deliver_policy": "by_start_sequence", "opt_start_seq": start}
