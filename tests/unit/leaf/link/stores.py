"""The two stores of a link and the durable source between them, as nats-server 2.15.1 was seen to behave and
as its source says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from agent.hub.registrar.durability import Proposals
from agent.hub.registrar.records import LeafRecord
from agent.hub.registrar.stretch import Stretch

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


class Row(NamedTuple):
    """A message of the hub's store: which one of the leaf it is, and the epoch through which it came. Those
    of other leaves have no sequence."""

    leaf_seq: int
    message: str
    payload: int
    epoch: str


@dataclass
class HubStore:
    """The hub's store: an aggregate of this number, of whose rows those below `first` are purged, its source,
    and the registrar's record of the leaf, which is in the same store.

    `cursor` is what its server knows of the source: the newest row, as long as it is there. `taken` is in the
    server's memory: up to where it takes nothing from the source any more. A server that starts or subscribes
    again has the consumer begin after its ack floor, and takes nothing up to there. A slow leaf has delivered
    `before_answer` messages when it answers that: the hub does not hear them, and takes them for held.

    With an `interval` its server syncs now and then: a power cut takes rows above `on_disk` and puts the
    record back, at most to `leaf_on_disk`. `proposals` and `stretch` are in the registrar's memory.
    """

    created: str
    stream: int = 0
    first: int = 1
    rows: list[Row] = field(default_factory=list)
    epoch: str = ""
    cursor: int = 0
    taken: int = 0
    subscribed: bool = False
    leaf: LeafRecord | None = None
    noted: int = 0
    interval: bool = False
    boot: str = ""
    on_disk: int = 0
    leaf_on_disk: LeafRecord | None = None
    proposals: Proposals = field(default_factory=Proposals)
    before_answer: int = 0
    stretch: Stretch | None = None

    @property
    def synced(self) -> int:
        """Up to which row all is on disk."""
        return self.on_disk if self.interval else self.last

    @property
    def durable(self) -> set[int]:
        """What it has taken of the leaf and a power cut can't take."""
        return {row.payload for row in self.rows[: self.synced] if row.leaf_seq}

    def sync(self) -> None:
        """All is on disk."""
        self.on_disk, self.leaf_on_disk = self.last, self.leaf

    def power_cut(self, boot: str, rows: int, *, record: bool) -> None:
        """Its machine is back: so many rows above those on disk are there, and the newest `record` or that on
        disk."""
        del self.rows[self.on_disk + rows :]
        self.boot, self.on_disk = boot, self.last
        self.leaf = self.leaf if record else self.leaf_on_disk
        self.leaf_on_disk = self.leaf
        self.first = min(self.first, self.last + 1)
        self.noted = min(self.noted, self.last)

    @property
    def name(self) -> str:
        """The name of the aggregate."""
        return f"TELEMETRY_{self.stream}"

    @property
    def last(self) -> int:
        """The last sequence."""
        return len(self.rows)

    @property
    def payloads(self) -> set[int]:
        """What it has taken of the leaf, purged or not."""
        return {row.payload for row in self.rows if row.leaf_seq}

    def newest(self, of: Callable[[Row], object]) -> tuple[int, Row] | None:
        """The newest row of a kind that is not purged, with its sequence."""
        rows = range(self.last, self.first - 1, -1)
        return next(((seq, self.rows[seq - 1]) for seq in rows if of(self.rows[seq - 1])), None)

    def restarts(self) -> None:
        """Its server was away: what it knows is what it holds."""
        found = self.newest(lambda row: row.leaf_seq and row.epoch == self.epoch)
        self.cursor = self.taken = found[1].leaf_seq if found else 0
        self.subscribed, self.before_answer = False, 0
        self.proposals.clear()

    def follow(self, epoch: str) -> None:
        """Have the source sit on the consumer of this epoch."""
        if self.epoch != epoch:
            self.epoch = epoch
            self.restarts()

    def take(self, leaf: LeafStore, wall: float, most: int, *, acknowledged: bool) -> None:
        """Take what the consumer delivers, at most so many messages. `acknowledged`: flow control brings the
        leaf word of it."""
        consumer = leaf.consumers.get(self.epoch)
        if consumer is None:
            return
        if not self.subscribed:
            consumer.place = consumer.floor
            unheard = self.before_answer if consumer.paused_until <= wall else 0
            delivered = max(consumer.floor, min(leaf.last, consumer.floor + unheard))
            self.taken, self.subscribed, self.before_answer = max(self.taken, delivered), True, 0
        lowest = leaf.first - 1
        consumer.place, consumer.floor = max(consumer.place, lowest), max(consumer.floor, lowest)
        while most > 0 and consumer.place < leaf.last and consumer.paused_until <= wall:
            most -= 1
            consumer.place += 1
            if consumer.place > self.taken:
                at = consumer.place - 1
                self.rows.append(Row(consumer.place, leaf.ids[at], leaf.payloads[at], self.epoch))
                self.taken = self.cursor = consumer.place
        if acknowledged:
            consumer.floor = max(consumer.floor, min(self.taken, consumer.place))
