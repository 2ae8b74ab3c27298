"""Tracks edge nodes: births with names and types by alias, and the next `seq`. No I/O; monotonic seconds.

Nodes, devices and metrics are bounded; dead or unborn nodes are evicted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from msgspec import Struct, field

MAX_NODES: Final = 1_000
MAX_DEVICES: Final = 1_000
"""Devices per node."""
MAX_METRICS: Final = 100_000
"""Metrics of all nodes."""
FIRST_ASK, LONGEST_ASK = 10.0, 600.0
"""Seconds between requests for births: at first, and for a node that never answers."""
_SEQS: Final = 256
_LATELY: Final = 128
"""How far back a resent message may lie."""


class NodeId(NamedTuple):
    group: str
    node: str

    def name(self, device: str | None = None) -> str:
        """Return the name of the node or of its device."""
        return "/".join(self if device is None else (*self, device))


class MetricType(NamedTuple):
    name: str
    datatype: int


class Births(Struct):
    """The last birth of a node or device."""

    types: dict[str, int] = field(default_factory=dict)
    aliases: dict[int, MetricType] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Its share of `MAX_METRICS`."""
        return 1 + max(len(self.types), len(self.aliases))


class SequenceGap(Struct, frozen=True):
    """Possibly missing messages: `expected` and `received` `seq`, None if unknown.

    `reason` is `seq`, `no_birth` or `unknown_alias`.
    """

    reason: str
    expected: int | None = None
    received: int | None = None

    @property
    def missing(self) -> int:
        """The least number of missing messages."""
        if self.expected is None or self.received is None:
            return 0
        return (self.received - self.expected) % _SEQS


class EdgeNode(Struct):
    """One node. `births` are by device, None for the node itself; empty unless known alive."""

    births: dict[str | None, Births] = field(default_factory=dict)
    bd_seq: int | None = None
    expected: int | None = None
    size: int = 0
    """Of all its births."""
    after_gap: bool = False
    """Whether messages, possibly births with new aliases, were missed since the last birth."""
    _said: set[str] = field(default_factory=set)
    _asked: int = 0
    _next_ask: float = 0.0

    @property
    def is_alive(self) -> bool:
        """Whether it was born and has not died."""
        return None in self.births

    def follow(self, seq: int | None, *, repeat: bool = False) -> SequenceGap | None:
        """Note a `seq` and return a gap before it. A resent message (`repeat`) may be old."""
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
        """Note a message without known birth; returns a gap when new."""
        if reason in self._said:
            return None
        self._said.add(reason)
        return SequenceGap(reason, None, seq)

    def may_ask(self, now: float) -> bool:
        """Tell whether to ask for births now, and count that as asked."""
        if now < self._next_ask:
            return False
        self._next_ask = now + min(FIRST_ASK * 2**self._asked, LONGEST_ASK)
        self._asked = min(self._asked + 1, 10)
        return True

    @property
    def needs_birth(self) -> bool:
        """Whether something can't be decoded or trusted before a new birth."""
        return self.after_gap or bool(self._said) or not self.is_alive

    def is_asked(self, now: float) -> bool:
        """Whether it is too early to ask again."""
        return now < self._next_ask

    def born(self, seq: int | None, bd_seq: int | None) -> None:
        """Note the node's birth, which cancels its devices'."""
        self.births.clear()
        self.size = 0
        self.bd_seq, self.after_gap = bd_seq, False
        self.expected = None if seq is None else (seq + 1) % _SEQS
        self._said.clear()

    def keep(self, device: str | None, births: Births) -> None:
        self.births[device] = births
        self.size += births.size
        if device is None:
            self._asked = 0

    def dies(self, bd_seq: int | None) -> list[str | None] | None:
        """Note a death; returns stale sources (None for the node), or None for an earlier
        connection's death.
        """
        if bd_seq is not None and self.bd_seq is not None and bd_seq != self.bd_seq:
            return None
        stale: list[str | None] = [None, *(device for device in self.births if device is not None)]
        self.births.clear()
        self.expected, self.size = None, 0
        return stale

    def forget(self, device: str | None) -> None:
        births = self.births.pop(device, None)
        if births is not None:
            self.size -= births.size


class TooManyError(Exception):
    """A limit is exceeded; the text names it."""


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
        """Return a node's state. Raises `TooManyError`."""
        node = self._nodes.get(ident)
        if node is None:
            if len(self._nodes) >= self._most_nodes:
                self._make_room(now)
            node = self._nodes[ident] = EdgeNode()
        return node

    def register(
        self, ident: NodeId, device: str | None, metrics: Iterable[tuple[str, int | None, int]]
    ) -> None:
        """Store a birth: name, alias and datatype per metric. Raises `TooManyError` after forgetting the
        source.
        """
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
