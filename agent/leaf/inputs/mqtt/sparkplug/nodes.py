"""What is known of edge nodes: their births, with the names and types behind aliases, and the `seq` that
comes next. No I/O; times are monotonic seconds that the caller brings.

It is bounded: so many nodes, devices and metrics. A node that is dead, or was never born, gives its place up.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from msgspec import Struct, field

MAX_NODES: Final = 1_000
MAX_DEVICES: Final = 1_000
"""Devices of a node."""
MAX_METRICS: Final = 100_000
"""Metrics of all nodes of an input."""
FIRST_ASK, LONGEST_ASK = 10.0, 600.0
"""Seconds after which a node is asked for its births again at the earliest: at first, and one that never
answers."""
_SEQS: Final = 256
_LATELY: Final = 128
"""How far back a message that the broker sends again may lie."""


class NodeId(NamedTuple):
    """The identifiers of a node."""

    group: str
    node: str

    def name(self, device: str | None = None) -> str:
        """The name of the node, or of a device of it."""
        return "/".join(self if device is None else (*self, device))


class MetricType(NamedTuple):
    """What a birth says of a metric."""

    name: str
    datatype: int


class Births(Struct):
    """What the last birth of a node or device says."""

    types: dict[str, int] = field(default_factory=dict)
    aliases: dict[int, MetricType] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """What it counts for in `MAX_METRICS`."""
        return 1 + max(len(self.types), len(self.aliases))


class SequenceGap(Struct, frozen=True):
    """Messages of a node may be missing: `expected` and `received` are numbers (`seq`), None where they are
    unknown. `reason` is `seq`, `no_birth` or `unknown_alias`."""

    reason: str
    expected: int | None = None
    received: int | None = None

    @property
    def missing(self) -> int:
        """How many messages are missing at least."""
        if self.expected is None or self.received is None:
            return 0
        return (self.received - self.expected) % _SEQS


class EdgeNode(Struct):
    """One node. `births` are those of its own metrics (None) and of its devices by name; those of a node that
    is not known to be alive are empty."""

    births: dict[str | None, Births] = field(default_factory=dict)
    bd_seq: int | None = None
    expected: int | None = None
    size: int = 0
    """Of all its births."""
    after_gap: bool = False
    """Whether a message was missed since the last birth: that may have been a birth with other aliases."""
    _said: set[str] = field(default_factory=set)
    _asked: int = 0
    _next_ask: float = 0.0

    @property
    def is_alive(self) -> bool:
        """Whether its birth is known, and no death since."""
        return None in self.births

    def follow(self, seq: int | None, *, repeat: bool = False) -> SequenceGap | None:
        """A message with this `seq` came; whether some before it did not. What the broker sends again
        (`repeat`) may be of the past. A message without a number is not checked."""
        expected = self.expected
        if seq is None:
            return None
        if repeat and expected is not None and 0 < (expected - seq) % _SEQS <= _LATELY:
            return None
        self.expected = (seq + 1) % _SEQS
        if expected is None or seq == expected:
            return None
        self.after_gap = True
        return SequenceGap("seq", expected, seq)

    def lacks(self, reason: str, seq: int | None) -> SequenceGap | None:
        """A message can't be understood for want of a birth; a gap where that is new since the last birth."""
        if reason in self._said:
            return None
        self._said.add(reason)
        return SequenceGap(reason, None, seq)

    def may_ask(self, now: float) -> bool:
        """Whether the node may be asked for its births now; counts as asked where it may."""
        if now < self._next_ask:
            return False
        self._next_ask = now + min(FIRST_ASK * 2**self._asked, LONGEST_ASK)
        self._asked = min(self._asked + 1, 10)
        return True

    @property
    def needs_birth(self) -> bool:
        """Whether something of it can't be understood, or not be trusted, before it is born again."""
        return self.after_gap or bool(self._said) or not self.is_alive

    def is_asked(self, now: float) -> bool:
        """Whether it may not be asked again yet."""
        return now < self._next_ask

    def born(self, seq: int | None, bd_seq: int | None) -> None:
        """The node itself was born: what was said of its devices counts no more."""
        self.births.clear()
        self.size = 0
        self.bd_seq, self.after_gap = bd_seq, False
        self.expected = None if seq is None else (seq + 1) % _SEQS
        self._said.clear()

    def keep(self, device: str | None, births: Births) -> None:
        """A birth is known from now on."""
        self.births[device] = births
        self.size += births.size
        if device is None:
            self._asked = 0

    def dies(self, bd_seq: int | None) -> list[str | None] | None:
        """The node has died: returns which of its sources are stale now, None for the node. Returns None
        where the death is that of an earlier connection."""
        if bd_seq is not None and self.bd_seq is not None and bd_seq != self.bd_seq:
            return None
        stale: list[str | None] = [None, *(device for device in self.births if device is not None)]
        self.births.clear()
        self.expected, self.size = None, 0
        return stale

    def forget(self, device: str | None) -> None:
        """Forget the birth of a source, if there was one."""
        births = self.births.pop(device, None)
        if births is not None:
            self.size -= births.size


class TooManyError(Exception):
    """More than the bounds allow; the text says which."""


class NodeTable:
    """All nodes of an input."""

    def __init__(
        self, nodes: int = MAX_NODES, devices: int = MAX_DEVICES, metrics: int = MAX_METRICS
    ) -> None:
        self._most_nodes, self._most_devices, self._most_metrics = nodes, devices, metrics
        self._nodes: dict[NodeId, EdgeNode] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def node(self, ident: NodeId, now: float) -> EdgeNode:
        """What is known of a node. Raises `TooManyError` where there is no room for another one."""
        node = self._nodes.get(ident)
        if node is None:
            if len(self._nodes) >= self._most_nodes:
                self._make_room(now)
            node = self._nodes[ident] = EdgeNode()
        return node

    def register(
        self, ident: NodeId, device: str | None, metrics: Iterable[tuple[str, int | None, int]]
    ) -> None:
        """Keep what a birth says: the name, alias and datatype of each metric. Raises `TooManyError`; what is
        known of the source is then forgotten."""
        node = self._nodes[ident]
        node.forget(device)
        births = Births()
        for name, alias, datatype in metrics:
            births.types[name] = datatype
            if alias is not None:
                births.aliases[alias] = MetricType(name, datatype)
        if device is not None and len(node.births) > self._most_devices:
            raise TooManyError(f"{ident.name()} has more than {self._most_devices} devices")
        total = births.size + sum(node.size for node in self._nodes.values())
        if total > self._most_metrics:
            raise TooManyError(
                f"with {ident.name(device)} the input has {total} metrics, more than {self._most_metrics}"
            )
        node.keep(device, births)

    def _make_room(self, now: float) -> None:
        for ident, node in self._nodes.items():
            if not node.is_alive and not node.is_asked(now):
                del self._nodes[ident]
                return
        raise TooManyError(f"more than {self._most_nodes} edge nodes")
