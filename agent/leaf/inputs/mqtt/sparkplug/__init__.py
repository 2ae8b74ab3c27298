"""Converts Sparkplug B 3.0 messages to readings. No I/O.

The device is `<group>/<node>` or `<group>/<node>/<device>`, the metric its birth name, the time its own.
`sparkplug_online` is true after a birth and false after a death; `sparkplug_gap` has the least number of
missing messages. A node with missing messages or births is asked for its births. Metrics without known name,
type or value are refused with alias and raw value.
"""

from __future__ import annotations

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
    Metric,
    Payload,
    PayloadError,
    ValueRefusedError,
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
            if source is not None:
                message = _Message(source, topic, parse_payload(data), repeat, lines, taken)
                node = self._table.node(source.ident, now)
                message.take(self._table, node)
                if source.kind != "NDEATH" and node.needs_birth and node.may_ask(now):
                    taken.commands.append(_rebirth(source.ident, wall_ns))
        except PayloadError as error:
            taken.refused.append(RefusedMetrics("bad_message", Letter(data, topic, str(error))))
        except TooManyError as error:
            text = f"{error}; give inputs of their own to some of the groups"
            taken.refused.append(RefusedMetrics("too_many", Letter(data, topic, text)))
        self._validate(lines, topic, wall_ns, taken)
        return taken

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
    lines: list[bytes]
    taken: Taken

    def take(self, table: NodeTable, node: EdgeNode) -> None:
        """Decode it. Raises `TooManyError` for a birth beyond limits, after adding its readings."""
        kind, _, device = self.source
        seq = self.payload.seq
        if kind == "NDEATH":
            self._node_death(node)
            return
        if kind == "NBIRTH":
            node.born(seq, self._bd_seq())
        elif node.is_alive:
            self._say_gap(node.follow(seq, repeat=self.repeat))
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
            if metric.name is not None and len(metric.name) <= contract.MAX_NAME:
                yield metric.name, metric.alias, metric.datatype

    def _node_death(self, node: EdgeNode) -> None:
        bd_seq, born = self._bd_seq(), node.bd_seq
        stale = node.dies(bd_seq)
        if stale is None:
            text = f"the death of an earlier connection, of bdSeq {bd_seq}: that of the birth is {born}"
            self._refuse("old_death", text, [(metric.name, metric) for metric in self.payload.metrics])
            return
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
        refused: dict[tuple[str, str], list[tuple[str | None, Metric]]] = {}
        for metric in self.payload.metrics:
            name, datatype = metric.name, metric.datatype
            if births is not None and name is None and metric.alias in births.aliases:
                name = births.aliases[metric.alias].name
                datatype = datatype or births.aliases[metric.alias].datatype
            elif births is not None and name is not None:
                datatype = datatype or births.types.get(name, 0)
            try:
                self._reading(node, metric, name, datatype)
            except ValueRefusedError as error:
                refused.setdefault((error.reason, str(error)), []).append((name, metric))
        for (reason, text), metrics in refused.items():
            self._refuse(reason, text, metrics)

    def _reading(self, node: EdgeNode, metric: Metric, name: str | None, datatype: int) -> None:
        if name is None:
            if metric.alias is not None and self.source.device in node.births:
                self._say_gap(node.lacks("unknown_alias", self.payload.seq))
            raise ValueRefusedError("unknown_alias", "no known birth gives it a name")
        value: contract.Value = "" if metric.is_null else value_of(metric, datatype)
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
            row = {"name": name, **metric.shown()} if name is not None else metric.shown()
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
