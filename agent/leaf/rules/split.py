"""Splits a chunk by rules. Pure; times come from the caller.

Decodes metric and device of every line, and the rest only for deadbands and tags. Unchanged lines keep their
bytes.
"""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime, timedelta
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct, field

from agent.contract import MACHINE_OFFSET, MAX_NAME, MAX_TAGS, request_part
from agent.leaf.rules import Rulebook, RuleResult
from agent.leaf.rules.deadbands import Band, Deadbands, Moves, SeriesValue, key_of
from agent.leaf.rules.windows import Number, OpenWindow, OpenWindows, WindowPlan, added

_TAG_SETS: Final = 256

_NO_TAGS: Final = Raw(b"{}")

MAX_LINE: Final = 2048
"""Largest aggregated line in bytes; windows keep tags and text."""
_LONGEST: Final = MAX_NAME - len("_count")
_FIRST_SECOND: Final = -62_135_596_800
"""Of year 1."""
_EPOCH: Final = datetime(1970, 1, 1)
_STAMPED: Final = f'{MACHINE_OFFSET}"'.encode()
PART_TAG: Final = "window_part"
"""Part number of a reopened window, from 2."""

_TAGS: Final = msgspec.json.Decoder(dict[str, Raw])


class _Metric(Struct, gc=False):
    metric: str


class _Name(Struct, gc=False):
    metric: str
    device: str


class _Series(Struct, gc=False):
    ts: datetime | float | int
    value: SeriesValue
    tags: Raw = Raw(b"")


_METRICS: Final = msgspec.json.Decoder(_Metric)
_NAMES: Final = msgspec.json.Decoder(_Name)
_SERIES: Final = msgspec.json.Decoder(_Series)
_Named = tuple[str, str] | str
_metric: Final = attrgetter("metric")
_name: Final = attrgetter("metric", "device")


class Routed(Struct):
    """A class's lines of a chunk: NDJSON, line numbers, and sent series under deadbands."""

    cls: str
    rows: list[bytes] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    moves: Moves = field(default_factory=dict)

    @property
    def payload(self) -> bytes:
        return b"\n".join(self.rows) + b"\n"


class Gathered(Struct):
    """A chunk's additions to windows: `rows` by class, and line numbers.

    `wanted` tells that a rule aggregates, even without space.
    """

    rows: dict[str, list[bytes]] = field(default_factory=dict)
    numbers: list[int] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    windows: dict[tuple[bytes, int], OpenWindow] = field(default_factory=dict)
    readings: dict[tuple[bytes, int], list[tuple[float, Number | str | bool]]] = field(default_factory=dict)
    wanted: bool = False

    @property
    def bitmap(self) -> int:
        lines = bytearray((self.numbers[-1] >> 3) + 1 if self.numbers else 0)
        for number in self.numbers:
            lines[number >> 3] |= 1 << (number & 7)
        return int.from_bytes(lines, "little")

    def parts(self) -> list[OpenWindow]:
        """Return the additions per window."""
        return [added(window, self.readings[key]) for key, window in self.windows.items()]


class Split(Struct):
    """A split chunk. `as_it_is` is the class of an unchanged chunk; otherwise `routed` and `gathered`.

    `dropped` counts readings by rule and reason (`drop`, `deadband` or `sample`).
    """

    as_it_is: str | None = None
    routed: list[Routed] = field(default_factory=list)
    gathered: Gathered = field(default_factory=Gathered)
    dropped: Counter[tuple[str, str]] = field(default_factory=Counter)
    part: bytes = b""
    """Mark of each part of the request (`request_part`), whatever deadbands hold back."""


class Splitter:
    """Splits chunks of one input. Without `windows` nothing is aggregated."""

    def __init__(self, book: Rulebook, deadbands: Deadbands, windows: OpenWindows | None = None) -> None:
        self._book, self._deadbands, self._windows = book, deadbands, windows
        self._decode: Any = (_NAMES if book.needs_device else _METRICS).decode_lines

    @property
    def aggregates(self) -> bool:
        """Whether readings may go into windows."""
        return self._windows is not None and self._book.aggregates

    def split(
        self, payload: bytes, cls: str, now: float, left_out: int = 0, *, gathers: bool = True
    ) -> Split:
        """Split a payload without the bitmap `left_out`; `now` in monotonic seconds. Aggregates only if
        `gathers`.
        """
        names = self._names(payload)
        verdicts = {name: self._verdict(name) for name in set(names)}
        keeps = {name: verdict.keeps_line for name, verdict in verdicts.items()}
        classes = {verdict.cls or cls for verdict in verdicts.values()}
        if not left_out and len(classes) == 1 and all(keeps.values()):
            return Split(as_it_is=classes.pop())
        split = Split()
        targets = {name: "" if one.dropped_by else one.cls or cls for name, one in verdicts.items()}
        if len(classes) > 1:
            split.part = request_part(targets[name] for name in names)
        routed = {name: Routed(name) for name in sorted(classes, key=lambda name: (name != cls, name))}
        kept = {target: routed[verdicts[target].cls or cls] for target, keep in keeps.items() if keep}
        out = left_out.to_bytes(max(len(names), left_out.bit_length()) // 8 + 1, "little")
        for number, (name, row) in enumerate(zip(names, payload.split(b"\n"), strict=False)):
            if left_out and out[number >> 3] >> (number & 7) & 1:
                continue
            to = kept.get(name)
            if to is None:
                verdict = verdicts[name]
                to = routed[verdict.cls or cls]
                sent = self._sent(row, name, verdict, now, to.moves, split)
                if sent is None:
                    continue
                row = sent
                if verdict.plan is not None and gathers:
                    split.gathered.wanted = True
                    if self._gathers(row, name, verdict.plan, to.cls, split.gathered):
                        split.gathered.numbers.append(number)
                        continue
            to.rows.append(row)
            to.numbers.append(number)
        split.routed = [part for part in routed.values() if part.rows]
        return split

    def _verdict(self, name: _Named) -> RuleResult:
        return self._book.verdict((name, "") if isinstance(name, str) else name)

    def _sent(
        self, row: bytes, name: _Named, verdict: RuleResult, now: float, moves: Moves, split: Split
    ) -> bytes | None:
        """Return a line to send, or None."""
        if verdict.dropped_by is not None:
            split.dropped[verdict.dropped_by, "drop"] += 1
            return None
        if verdict.band is not None and not self._sends(row, name, verdict.band, now, moves):
            split.dropped[verdict.band.rule, verdict.band.reason] += 1
            return None
        return with_tags(row, verdict.tags) if verdict.tags else row

    def _names(self, payload: bytes) -> list[_Named]:
        """Return metric and device of lines, or the metric alone."""
        return list(map(_name if self._book.needs_device else _metric, self._decode(payload)))

    def _sends(self, row: bytes, name: _Named, band: Band, now: float, moves: Moves) -> bool:
        series = _SERIES.decode(row)
        metric, device = (name, _NAMES.decode(row).device) if isinstance(name, str) else name
        ts = series.ts.timestamp() if isinstance(series.ts, datetime) else float(series.ts)
        key = key_of(metric, device, bytes(series.tags))
        return self._deadbands.sends(key, band.last_sent(series.value, ts, now), band, moves)

    def _gathers(self, row: bytes, name: _Named, plan: WindowPlan, cls: str, gathered: Gathered) -> bool:
        """Tell whether a line goes into a window."""
        if self._windows is None or len(row) > MAX_LINE:
            return False
        series = _SERIES.decode(row)
        metric, device = (name, _NAMES.decode(row).device) if isinstance(name, str) else name
        if isinstance(series.value, list | dict):
            return False
        if isinstance(series.value, bool | str) and not {"last", "count"} & set(plan.functions):
            return False
        ts = series.ts.timestamp() if isinstance(series.ts, datetime) else float(series.ts)
        begin = int(ts // plan.length) * plan.length
        if len(metric) > _LONGEST or begin < _FIRST_SECOND:
            return False
        stamped = _STAMPED in row and bytes(_LINE.decode(row).ts).endswith(_STAMPED)
        offset, tags = MACHINE_OFFSET if stamped else "Z", bytes(series.tags)
        kind = f"{plan.shape} {cls} {offset}".encode()
        key = key_of(metric, device, tags + kind), begin
        if key not in gathered.windows:
            if not self._windows.takes(*key, len(gathered.windows)):
                return False
            gathered.windows[key] = OpenWindow(
                series=key[0],
                begin=begin,
                rule=plan.rule,
                functions=plan.functions,
                length=plan.length,
                late=plan.late,
                cls=cls,
                metric=metric,
                device=device,
                tags=tags.decode(),
                offset=offset,
            )
        gathered.readings.setdefault(key, []).append((ts, series.value))
        gathered.rows.setdefault(cls, []).append(row)
        gathered.counts[plan.rule] += 1
        return True


class _Line(Struct, gc=False):
    """A reading with raw values."""

    ts: Raw
    device: Raw
    metric: Raw
    value: Raw
    tags: Raw = _NO_TAGS


_LINE: Final = msgspec.json.Decoder(_Line)


def with_tags(line: bytes, tags: tuple[tuple[str, str], ...]) -> bytes:
    """Add tags to a valid line, up to `MAX_TAGS`; existing tags and all values stay as written."""
    reading = _LINE.decode(line)
    added = _added(bytes(reading.tags), tags)
    if not added:
        return line
    own = bytes(reading.tags)[1:].lstrip()
    return b'{"ts":%b,"device":%b,"metric":%b,"value":%b,"tags":{%b%b%b}' % (
        bytes(reading.ts),
        bytes(reading.device),
        bytes(reading.metric),
        bytes(reading.value),
        b",".join(added),
        b"" if own == b"}" else b",",
        own,
    )


def _added(own: bytes, tags: tuple[tuple[str, str], ...]) -> list[bytes]:
    """Return the tags missing in `own`, as JSON members."""
    encoded = _encoded(tags)
    # Without an escape a tag has four quotation marks, and its name can be written in one way only.
    fits = b"\\" not in own and own.count(b'"') // 4 + len(tags) <= MAX_TAGS
    if fits and not any(name in own for name, _ in encoded):
        return [member for _, member in encoded]
    present = _TAGS.decode(own)
    room = MAX_TAGS - len(present)
    return [member for (name, _), (_, member) in zip(tags, encoded, strict=True) if name not in present][
        :room
    ]


@lru_cache(_TAG_SETS)
def _encoded(tags: tuple[tuple[str, str], ...]) -> list[tuple[bytes, bytes]]:
    return [(_text(name), _text(name) + b":" + _text(value)) for name, value in tags]


def _text(text: str) -> bytes:
    return json.dumps(text, ensure_ascii=False).encode()


def aggregate_lines(window: OpenWindow, part: int) -> list[bytes]:
    """Return the readings of a window's part, without newlines."""
    ts = (_EPOCH + timedelta(seconds=window.begin)).isoformat() + window.offset
    own = {"tags": Raw(window.tags.encode())} if window.tags else {}
    lines = [
        msgspec.json.encode(
            {"ts": ts, "device": window.device, "metric": f"{window.metric}_{name}", "value": value, **own}
        )
        for name, value in window.values().items()
    ]
    return lines if part == 1 else [with_tags(line, ((PART_TAG, str(part)),)) for line in lines]
