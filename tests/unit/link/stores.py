"""The two stores of a link and the durable source between them, as nats-server 2.15.1 was seen to behave and
as its source says."""

from __future__ import annotations

from dataclasses import dataclass, field

from agent.registrar.fleet import Leaf

NOT_PAUSED = float("-inf")


@dataclass
class Consumer:
    """A durable push consumer with flow control: where it starts, up to where it has delivered, and its ack
    floor, which may trail by far (it moves with flow control, once a second at rest)."""

    start: int
    place: int
    floor: int
    paused_until: float = NOT_PAUSED


@dataclass
class LeafStore:
    """The leaf's store: the ids of its messages ("" for a device's) and their payloads, of which those below
    `first` are purged, and its consumers."""

    created: str
    first: int = 1
    ids: list[str] = field(default_factory=list)
    payloads: list[int] = field(default_factory=list)
    consumers: dict[str, Consumer] = field(default_factory=dict)

    @property
    def last(self) -> int:
        """The last sequence."""
        return len(self.ids)

    def holds(self, seq: int) -> bool:
        """Whether there is a message at a sequence."""
        return self.first <= seq <= self.last

    def store(self, message: str, payload: int) -> None:
        """One more message."""
        self.ids.append(message)
        self.payloads.append(payload)


@dataclass
class HubStore:
    """The hub's store: an aggregate of this number, (leaf sequence, id, payload) in its order, what it knows
    of its source, and the registrar's record of the leaf, which is in the same store.

    `taken` is in the memory of its server: up to where it takes nothing from the source any more. A server
    that starts or subscribes again has the consumer begin after its ack floor, and takes nothing up to
    there.
    """

    created: str
    stream: int = 0
    held: list[tuple[int, str, int]] = field(default_factory=list)
    epoch: str = ""
    cursor: int = 0
    cursor_id: str = ""
    taken: int = 0
    subscribed: bool = False
    leaf: Leaf | None = None

    @property
    def name(self) -> str:
        """The name of the aggregate."""
        return f"TELEMETRY_{self.stream}"

    @property
    def last(self) -> int:
        """The last sequence."""
        return len(self.held)

    def restarts(self) -> None:
        """Its server was away: what it knows is what it holds."""
        self.taken, self.subscribed = self.cursor, False

    def follow(self, epoch: str) -> None:
        """Have the source sit on the consumer of this epoch."""
        if self.epoch != epoch:
            self.epoch, self.cursor, self.cursor_id = epoch, 0, ""
            self.restarts()

    def take(self, leaf: LeafStore, wall: float, most: int, *, acknowledged: bool) -> None:
        """Take what the consumer delivers, at most so many messages. `acknowledged`: flow control brings the
        leaf word of it."""
        consumer = leaf.consumers.get(self.epoch)
        if consumer is None:
            return
        if not self.subscribed:
            consumer.place = consumer.floor
            self.taken, self.subscribed = max(self.taken, consumer.floor), True
        lowest = leaf.first - 1
        consumer.place, consumer.floor = max(consumer.place, lowest), max(consumer.floor, lowest)
        while most > 0 and consumer.place < leaf.last and consumer.paused_until <= wall:
            most -= 1
            consumer.place += 1
            if consumer.place > self.taken:
                message = leaf.ids[consumer.place - 1]
                self.held.append((consumer.place, message, leaf.payloads[consumer.place - 1]))
                self.taken = self.cursor = consumer.place
                self.cursor_id = message
        if acknowledged:
            consumer.floor = max(consumer.floor, min(self.taken, consumer.place))
