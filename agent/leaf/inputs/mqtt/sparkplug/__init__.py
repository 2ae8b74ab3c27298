"""Converts Sparkplug B 3.0 messages to readings. No I/O.

The device is `<group>/<node>` or `<group>/<node>/<device>`, the metric its birth name, the time its own.
`sparkplug_online` is true after a birth and false after a death; `sparkplug_gap` has the least number of
missing messages. A node with missing messages or births is asked for its births. Metrics without known name,
type or value are refused with alias and raw value.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct, field

from agent import contract
from agent.base.logs import listed
from agent.contract import Letter
from agent.leaf.inputs.formats import split_valid
from agent.leaf.inputs.mqtt.sparkplug.nodes import EdgeNode, NodeId, NodeTable, SequenceGap, TooManyError
from agent.leaf.inputs.mqtt.sparkplug.payload import (
    MAX_METRICS,
    REBIRTH,
    Metric,
    Payload,
    PayloadError,
    ValueRefusedError,
    columns,
    members,
    parse_payload,
    rebirth_command,
    value_of,
)

MAX_BYTES: Final = 2**20
"""Largest message; births list all metrics of a node."""
ONLINE, GAP = "sparkplug_online", "sparkplug_gap"
_NAMESPACE: Final = "spBv1.0"
_NODE_KINDS: Final = frozenset({"NBIRTH", "NDATA", "NDEATH"})
_DEVICE_KINDS: Final = frozenset({"DBIRTH", "DDATA", "DDEATH"})
_COMMANDS: Final = frozenset({"NCMD", "DCMD"})
_LETTER_BYTES: Final = 6_000
"""Bytes of metrics per letter, so that none is cut."""
_encode: Final = msgspec.json.encode


class Source(NamedTuple):
    """The node or device of a message."""

    kind: str
    ident: NodeId
    device: str | None


class NodeCommand(NamedTuple):
    """A message to publish."""

    topic: str
    payload: bytes


class RefusedMetrics(NamedTuple):
    """Something that is not a reading; `reason` counts it, as a message or as so many metrics."""

    reason: str
    letter: Letter
    times: int = 1


class Taken(Struct):
    """NDJSON of `count` readings, refusals, commands and gaps."""

    payload: bytes = b""
    count: int = 0
    refused: list[RefusedMetrics] = field(default_factory=list)
    commands: list[NodeCommand] = field(default_factory=list)
    gaps: list[SequenceGap] = field(default_factory=list)


def source_of(topic: str) -> Source | None:
    """Return a topic's source, None for commands and host states. Raises `PayloadError` for other topics."""
    match topic.split("/"):
        case ["spBv1.0", group, kind, node] if kind in _NODE_KINDS and group and node:
            return Source(kind, NodeId(group, node), None)
        case ["spBv1.0", group, kind, node, device] if kind in _DEVICE_KINDS and group and node and device:
            return Source(kind, NodeId(group, node), device)
        case ["spBv1.0", "STATE", _]:
            return None
        case ["spBv1.0", _, kind, *_] if kind in _COMMANDS:
            return None
    raise PayloadError(f"no topic of Sparkplug B, {_NAMESPACE}/<group>/<type>/<node>[/<device>]")


class SparkplugDecoder:
    """Decodes messages in order. `domain` is the machine's."""

    def __init__(self, domain: str, table: NodeTable | None = None) -> None:
        self._domain = domain
        self._table = NodeTable() if table is None else table

    def take(self, topic: str, data: bytes, now: float, wall_ns: int, *, repeat: bool = False) -> Taken:
        """Decode a message at monotonic second `now`; `repeat` marks a resent one."""
        taken = Taken()
        lines: list[bytes] = []
        try:
            if len(data) > MAX_BYTES:
                raise PayloadError(f"longer than {MAX_BYTES} bytes")
            source = source_of(topic)
            if source is None:
                self._hear(topic, data, now)
            else:
                message = _Message(source, topic, parse_payload(data), repeat, now, lines, taken)
                node = self._table.node(source.ident, now)
                message.take(self._table, node)
                needs_birth = node.needs_birth if source.kind != "NDEATH" else node.doubted is not None
                if needs_birth and self._table.may_ask(node, now):
                    taken.commands.append(_rebirth(source.ident, wall_ns))
        except PayloadError as error:
            taken.refused.append(RefusedMetrics("bad_message", Letter(data, topic, str(error))))
        except TooManyError as error:
            text = f"{error}; give inputs of their own to some of the groups"
            taken.refused.append(RefusedMetrics("too_many", Letter(data, topic, text)))
        self._validate(lines, topic, wall_ns, taken)
        return taken

    def due(self) -> float | None:
        """Return when a node that may have died is dead, or None."""
        return min((due for _, _, due in self._table.doubted()), default=None)

    def decide(self, now: float, wall_ns: int) -> Taken:
        """Return the deaths of nodes that were doubted and have not shown that they live."""
        taken = Taken()
        lines: list[bytes] = []
        for ident, node, due in list(self._table.doubted()):
            if due <= now:
                source = Source("NDEATH", ident, None)
                dead = _Message(source, ident.name(), Payload(None, None, []), False, now, lines, taken)
                dead.say_dead(node.dies())
        self._validate(lines, "NDEATH", wall_ns, taken)
        return taken

    def _hear(self, topic: str, data: bytes, now: float) -> None:
        """Note another host's request for births, which the births answer."""
        match topic.split("/"):
            case [_, group, "NCMD", name] if (node := self._table.find(NodeId(group, name))) is not None:
                with contextlib.suppress(PayloadError):
                    if any(metric.name == REBIRTH for metric in parse_payload(data).metrics):
                        node.requested(now)

    def _validate(self, lines: list[bytes], topic: str, wall_ns: int, taken: Taken) -> None:
        block = b"".join(lines)
        parsed = split_valid(block, self._domain, wall_ns)
        taken.payload, taken.count = parsed.payload, parsed.count
        for offset, reason in parsed.bad:
            line = block[offset : block.find(b"\n", offset)]
            taken.refused.append(RefusedMetrics("bad_value", Letter(line, topic, reason)))


def _rebirth(ident: NodeId, wall_ns: int) -> NodeCommand:
    topic = f"{_NAMESPACE}/{ident.group}/NCMD/{ident.node}"
    return NodeCommand(topic, rebirth_command(wall_ns // 1_000_000))


class _Message(Struct):
    """A message being decoded into `lines`."""

    source: Source
    topic: str
    payload: Payload
    repeat: bool
    now: float
    lines: list[bytes]
    taken: Taken
    refused: dict[tuple[str, str], list[tuple[str | None, Metric]]] = field(default_factory=dict)

    def take(self, table: NodeTable, node: EdgeNode) -> None:
        """Decode it. Raises `TooManyError` for a birth beyond limits, after adding its readings."""
        kind, _, device = self.source
        seq = self.payload.seq
        if kind == "NDEATH":
            self._node_death(node)
            return
        if kind == "NBIRTH":
            node.born(seq, self._bd_seq(), self.now)
        elif node.is_alive:
            gap = node.follow(seq, repeat=self.repeat)
            self._say_gap(gap)
            if node.kept and (gap is not None or seq is None):
                # Births may have changed while the agent was away, and an alias must not give another name.
                node.forget_all()
            if not self.repeat:
                node.kept = False
                if gap is None:
                    node.lives()
        else:
            self._say_gap(node.lacks("no_birth", seq))
        if kind in ("NBIRTH", "DBIRTH"):
            self._birth(table, node)
            return
        if kind == "DDEATH":
            node.forget(device)
            self._say(ONLINE, False, at=self.payload.time)
        elif device not in node.births:
            self._say_gap(node.lacks("no_birth", seq))
        self._data(node)

    def _birth(self, table: NodeTable, node: EdgeNode) -> None:
        self._say(ONLINE, True, at=self.payload.time)
        try:
            if self.source.device is None or node.is_alive:
                table.register(self.source.ident, self.source.device, self._named())
        finally:
            self._data(node)

    def _named(self) -> Iterator[tuple[str, int | None, int]]:
        for metric in self.payload.metrics:
            if metric.name is not None:
                yield from self._names_of(metric, metric.name)

    def _names_of(self, metric: Metric, name: str, depth: int = 0) -> Iterator[tuple[str, int | None, int]]:
        if len(name) <= contract.MAX_NAME:
            yield name, metric.alias if not depth else None, metric.datatype
        with contextlib.suppress(ValueRefusedError):  # its reading is refused
            for below, member in members(metric, name, depth) or ():
                yield from self._names_of(member, below, depth + 1)

    def _node_death(self, node: EdgeNode) -> None:
        bd_seq, born = self._bd_seq(), node.bd_seq
        if node.is_earlier(bd_seq):
            text = f"the death of an earlier connection, of bdSeq {bd_seq}: that of the birth is {born}"
            self._refuse("old_death", text, [(metric.name, metric) for metric in self.payload.metrics])
        elif not node.doubts(self.now):
            self.say_dead(node.dies())

    def say_dead(self, stale: list[str | None]) -> None:
        """Add the deaths of a node and its devices."""
        for device in stale:
            # The time of a will is that of the connection, so this is that of its arrival.
            self._say(ONLINE, False, source=self.source.ident.name(device))

    def _bd_seq(self) -> int | None:
        for metric in self.payload.metrics:
            if metric.name == "bdSeq" and isinstance(metric.raw, int):
                return metric.raw
        return None

    def _say_gap(self, gap: SequenceGap | None) -> None:
        if gap is None:
            return
        numbers = {"expected": gap.expected, "received": gap.received}
        tags = {name: str(number) for name, number in numbers.items() if number is not None}
        node = self.source.ident.name()
        self._say(GAP, gap.missing, tags={"reason": gap.reason, **tags}, source=node)
        self.taken.gaps.append(gap)

    def _data(self, node: EdgeNode) -> None:
        births = node.births.get(self.source.device)
        for metric in self.payload.metrics:
            name, datatype = metric.name, metric.datatype
            if births is not None and name is None and metric.alias in births.aliases:
                name = births.aliases[metric.alias].name
                datatype = datatype or births.aliases[metric.alias].datatype
            self._metric(node, metric, name, datatype)
        for (reason, text), metrics in self.refused.items():
            self._refuse(reason, text, metrics)
        self.refused.clear()

    def _metric(
        self, node: EdgeNode, metric: Metric, name: str | None, datatype: int, depth: int = 0
    ) -> None:
        births = node.births.get(self.source.device)
        if births is not None and name is not None:
            datatype = datatype or births.types.get(name, 0)
        try:
            if name is None:
                if metric.alias is not None and births is not None:
                    self._say_gap(node.lacks("unknown_alias", self.payload.seq))
                raise ValueRefusedError("unknown_alias", "no known birth gives it a name")
            if (below := members(metric, name, depth)) is not None:
                for path, member in below:
                    self._metric(node, member, path, member.datatype, depth + 1)
            elif (found := columns(metric, datatype)) is not None:
                for column, value in found:
                    self._column(node, metric, f"{name}/{column}", value)
            else:
                self._reading(node, metric, name, "" if metric.is_null else value_of(metric, datatype))
        except ValueRefusedError as error:
            self.refused.setdefault((error.reason, str(error)), []).append((name, metric))

    def _column(
        self, node: EdgeNode, metric: Metric, name: str, value: contract.Value | ValueRefusedError
    ) -> None:
        if isinstance(value, ValueRefusedError):
            self.refused.setdefault((value.reason, str(value)), []).append((name, metric))
        else:
            self._reading(node, metric, name, value)

    def _reading(self, node: EdgeNode, metric: Metric, name: str, value: contract.Value) -> None:
        if len(self.lines) > MAX_METRICS:
            raise ValueRefusedError("too_many", f"the message has more than {MAX_METRICS} values")
        tags = {"is_null": metric.is_null, "is_historical": metric.is_historical, "after_gap": node.after_gap}
        at = self.payload.time if metric.time is None else metric.time
        self._say(name, value, at=at, tags={tag: "true" for tag, is_set in tags.items() if is_set})

    def _say(
        self,
        metric: str,
        value: contract.Value,
        *,
        at: int | None = None,
        tags: Mapping[str, str] | None = None,
        source: str | None = None,
    ) -> None:
        """Add a reading of `source`, by default the sender; `at` in ms since 1970, None for arrival."""
        row: dict[str, object] = {} if at is None else {"ts": at / 1000}
        row["device"] = source or self.source.ident.name(self.source.device)
        row["metric"], row["value"] = metric, value
        if tags:
            row["tags"] = tags
        self.lines.append(_encode(row) + b"\n")

    def _refuse(self, reason: str, text: str, metrics: list[tuple[str | None, Metric]]) -> None:
        """Put invalid metrics whole into letters."""
        rows: list[dict[str, object]] = []
        size = 0
        for name, metric in metrics:
            row = {**metric.shown(), "name": name} if name is not None else metric.shown()
            room = len(_encode(row))
            if rows and size + room > _LETTER_BYTES:
                self._letter(reason, text, rows)
                rows, size = [], 0
            rows.append(row)
            size += room
        self._letter(reason, text, rows)

    def _letter(self, reason: str, text: str, rows: list[dict[str, object]]) -> None:
        names = listed([str(row.get("name", f"alias {row.get('alias')}")) for row in rows])
        head = {"seq": self.payload.seq, "timestamp": self.payload.time, "metrics": rows}
        letter = Letter(_encode(head), self.topic, f"{text}: {names}" if rows else text)
        self.taken.refused.append(RefusedMetrics(reason, letter, max(1, len(rows))))
