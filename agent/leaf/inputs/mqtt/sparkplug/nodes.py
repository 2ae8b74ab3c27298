"""Tracks edge nodes: births with names and types by alias, and the next `seq`. No I/O; monotonic seconds.

Nodes, devices and metrics are bounded; dead or unborn nodes are evicted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from msgspec import Struct, field

MAX_NODES: Final = 1_000
MAX_DEVICES: Final = 1_000
"""Devices per node."""
MAX_METRICS: Final = 100_000
"""Metrics of all nodes."""
FIRST_ASK, LONGEST_ASK = 10.0, 600.0
"""Seconds between requests for births: at first, and for a node that never answers."""
ASKS, ASKS_A_SECOND = 20, 25.0
"""Requests to all nodes at once, and per second after them."""
DOUBT_SECONDS: Final = 10.0
"""Time in which a node that may have died can show that it lives."""
_ASKED_SECONDS: Final = 60.0
"""Time in which births answer a request."""
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
    connections: int = 0
    """Births under `bd_seq` that nothing asked for, less deaths: its connections, perhaps too many."""
    doubted: float | None = None
    """When it may have died."""
    kept: bool = False
    """Whether its births are those of an earlier run, and no message has confirmed them."""
    _requested: float = float("-inf")
    """When anything last asked for its births."""
    said: set[str] = field(default_factory=set)
    changed: set[str | None] = field(default_factory=set)
    """Sources whose births changed since they were saved."""
    forgot_all: bool = False
    """Whether all births before `changed` were forgotten since they were saved."""
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
        if reason in self.said:
            return None
        self.said.add(reason)
        return SequenceGap(reason, None, seq)

    def requested(self, now: float) -> None:
        """Note that the agent or another host asks for births."""
        self._requested = now

    def may_ask(self, now: float) -> bool:
        """Tell whether to ask for births now, and count that as asked."""
        if now < self._next_ask:
            return False
        self.requested(now)
        self._next_ask = now + min(FIRST_ASK * 2**self._asked, LONGEST_ASK)
        self._asked = min(self._asked + 1, 10)
        return True

    @property
    def needs_birth(self) -> bool:
        """Whether something can't be decoded or trusted before a new birth."""
        return self.after_gap or bool(self.said) or not self.is_alive

    def is_asked(self, now: float) -> bool:
        """Whether it is too early to ask again."""
        return now < self._next_ask

    def born(self, seq: int | None, bd_seq: int | None, now: float) -> None:
        """Note the node's birth, which cancels its devices'."""
        is_answer = now - self._requested < _ASKED_SECONDS
        if bd_seq != self.bd_seq or self.doubted is not None or self.kept or not self.connections:
            self.connections = 1
        elif not is_answer and self.is_alive:
            self.connections += 1
        self.doubted = None
        self.forget_all()
        self.bd_seq, self.after_gap = bd_seq, False
        self.expected = None if seq is None else (seq + 1) % _SEQS
        self.said.clear()

    def keep(self, device: str | None, births: Births) -> None:
        self.births[device] = births
        self.changed.add(device)
        self.size += births.size
        if device is None:
            self._asked = 0

    def is_earlier(self, bd_seq: int | None) -> bool:
        """Tell whether a death is that of an earlier connection by its `bdSeq`."""
        return bd_seq is not None and self.bd_seq is not None and bd_seq != self.bd_seq

    def doubts(self, now: float) -> bool:
        """Tell whether a death with the present `bdSeq` may be that of an earlier connection.

        sparkplug-client 3.2.4 gives each connection the `bdSeq` 0 (`SparkplugClient` in its index.js never
        counts it), and so does a node that was restarted. Then the deaths are counted.
        """
        if self.connections > 1 and self.is_alive:
            self.connections -= 1
            self.doubted = now
            self._next_ask = min(self._next_ask, now)
            return True
        return False

    def lives(self) -> None:
        """Note a message that only a living node sends."""
        self.doubted = None

    def dies(self) -> list[str | None]:
        """Note a death; returns stale sources (None for the node)."""
        self.connections, self.doubted = 0, None
        stale: list[str | None] = [None, *(device for device in self.births if device is not None)]
        self.forget_all()
        self.expected = None
        return stale

    def forget_all(self) -> None:
        """Forget births that may have changed."""
        self.births.clear()
        self.changed.clear()
        self.size, self.kept, self.forgot_all = 0, False, True

    def forget(self, device: str | None) -> None:
        births = self.births.pop(device, None)
        if births is not None:
            self.changed.add(device)
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
        self._heard: set[NodeId] = set()
        self._asks = float(ASKS)
        self._asked_at = float("-inf")

    def __len__(self) -> int:
        return len(self._nodes)

    def node(self, ident: NodeId, now: float) -> EdgeNode:
        """Return a node's state. Raises `TooManyError`."""
        node = self._nodes.get(ident)
        if node is None:
            if len(self._nodes) >= self._most_nodes:
                self._make_room(now)
            node = self._nodes[ident] = EdgeNode()
        self._heard.add(ident)
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

    def find(self, ident: NodeId) -> EdgeNode | None:
        return self._nodes.get(ident)

    def items(self) -> Iterable[tuple[NodeId, EdgeNode]]:
        return self._nodes.items()

    def take_changed(self) -> list[tuple[NodeId, EdgeNode, set[str | None], bool]]:
        """Return nodes that were heard since the last call: the sources with other births, and whether these
        are all.
        """
        taken = []
        for ident in self._heard:
            if (node := self._nodes.get(ident)) is not None:
                taken.append((ident, node, node.changed, node.forgot_all))
                node.changed, node.forgot_all = set(), False
        self._heard = set()
        return taken

    def may_ask(self, node: EdgeNode, now: float) -> bool:
        """Tell whether to ask a node for its births now, so that many are not asked at once."""
        if node.is_asked(now):
            return False
        elapsed = max(0.0, now - self._asked_at)
        self._asks, self._asked_at = min(float(ASKS), self._asks + elapsed * ASKS_A_SECOND), now
        if self._asks < 1 or not node.may_ask(now):
            return False
        self._asks -= 1
        return True

    def doubted(self) -> Iterator[tuple[NodeId, EdgeNode, float]]:
        """Yield nodes that may have died, and when that is decided."""
        for ident, node in self._nodes.items():
            if node.doubted is not None:
                yield ident, node, node.doubted + DOUBT_SECONDS

    def _make_room(self, now: float) -> None:
        for ident, node in self._nodes.items():
            if (node.kept or not node.is_alive) and not node.is_asked(now):
                del self._nodes[ident]
                return
        raise TooManyError(f"more than {self._most_nodes} edge nodes")
