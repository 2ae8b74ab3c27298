"""Defines the agent's internal events, and delivers them to subscribers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from msgspec import Struct

from agent.contract import MessageId
from agent.jetstream import StreamInfo


class BatchStored(Struct, frozen=True):
    """The leaf's stream acknowledged a batch."""

    id: MessageId
    seq: int
    """The message's sequence."""
    readings: int
    """Number of readings; 0 for dead letters."""
    input: str
    position: str | None
    """Position of its pull input."""


class StreamFull(Struct, frozen=True):
    """A class's stream refused a batch for lack of space."""

    cls: str
    size: int
    """Upper bound of the message's bytes."""


class StreamTrimmed(Struct, frozen=True):
    """The agent purged messages that the hub holds."""

    cls: str


class StreamSeen(Struct, frozen=True):
    """A class's stream was inspected."""

    cls: str
    info: StreamInfo
    confirmed: int
    """Sequence up to which the hub holds this epoch."""


class EpochBegun(Struct, frozen=True):
    """A class's link began an epoch; nothing of it is known at the hub."""

    cls: str


class StoreLost(Struct, frozen=True):
    """A class's store was lost or restored from a backup."""

    cls: str
    found_by_hub: bool = False
    """Whether only the hub revealed it, so that the agent's state may be restored too."""


class LinkChanged(Struct, frozen=True):
    """The server's link to the hub went up or down."""


class ConnectionStuck(Struct, frozen=True):
    """The connection to the local server must be replaced."""

    reason: str


Event = TypeVar("Event")


class Events:
    """Delivers events at once in order of subscription. Exceptions reach the emitter."""

    def __init__(self) -> None:
        self._subscribers: dict[type, list[Callable[[Any], object]]] = {}

    def on(self, kind: type[Event], *subscribers: Callable[[Event], object]) -> None:
        """Subscribe to events of a kind."""
        self._subscribers.setdefault(kind, []).extend(subscribers)

    def emit(self, event: object) -> None:
        for subscriber in self._subscribers.get(type(event), ()):
            subscriber(event)
