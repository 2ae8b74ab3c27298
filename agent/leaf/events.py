"""What happens in a leaf's agent that several of its parts act on, and who hears of it."""

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
    """Of its message in the stream."""
    readings: int
    """How many readings it holds; 0 in a batch of dead letters."""
    input: str
    position: str | None
    """How far its pull input is with it."""


class StreamFull(Struct, frozen=True):
    """The stream of a class refused a batch for want of room."""

    cls: str
    size: int
    """The bytes of its message at most."""


class StreamTrimmed(Struct, frozen=True):
    """The agent purged messages of a class that the hub holds."""

    cls: str


class StreamSeen(Struct, frozen=True):
    """The stream of a class was looked at."""

    cls: str
    info: StreamInfo
    confirmed: int
    """The sequence up to which the hub is known to hold all of this epoch."""


class EpochBegun(Struct, frozen=True):
    """The link of a class has begun a new epoch: nothing of it is known to be at the hub."""

    cls: str


class StoreLost(Struct, frozen=True):
    """The store of a class was lost or restored from a backup."""

    cls: str
    found_by_hub: bool = False
    """Whether the agent's own state did not show it, so that it may have been restored too."""


class LinkChanged(Struct, frozen=True):
    """The link of the local server to the hub came up or went down."""


class ConnectionStuck(Struct, frozen=True):
    """The connection to the local server leads nowhere: a new one is needed."""

    reason: str


Event = TypeVar("Event")


class Events:
    """Hands each event to its subscribers at once, in the order in which they subscribed. What one raises
    reaches the part that emitted the event."""

    def __init__(self) -> None:
        self._subscribers: dict[type, list[Callable[[Any], object]]] = {}

    def on(self, kind: type[Event], *subscribers: Callable[[Event], object]) -> None:
        """Hand events of this kind to these from now on."""
        self._subscribers.setdefault(kind, []).extend(subscribers)

    def emit(self, event: object) -> None:
        for subscriber in self._subscribers.get(type(event), ()):
            subscriber(event)
