"""Holds back readings within a deadband. Pure: the caller brings the time.

Batches are stored in another order than they are sent where one of them is retried, and some are refused. So
it is unknown which of the moves in flight is stored last: a reading is held back only if it is unmoved
against the last stored value and against every move in flight. Whatever becomes of these, what is stored last
is then within the deadband of the reading.

What is held is bounded: of `MAX_SERIES` series at rest, about 6 MB, and of those with a move in flight, which
is a part of `[publish] in_flight`. Beyond that the series sent longest ago is forgotten and its next reading
is sent: a deadband then lets more through than it need, never less."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from math import inf
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct, field

MAX_SERIES: Final = 10_000
_KEY_BYTES: Final = 16
SeriesValue = float | int | str | bool | list[Any] | dict[str, Any]
"""A value as it stands in its line: an array as a list, bytes as their object."""


class Band(NamedTuple):
    """A rule's deadband: a reading is sent when its value moved by more than `width`, or `after` seconds from
    the one before (None: never for that). Where the rule takes samples, what moves is the number of the span
    of `sample` seconds that holds the `ts`, whatever the value."""

    rule: str
    width: float
    after: float | None
    sample: float | None = None

    @property
    def reason(self) -> str:
        """Why a reading is left out."""
        return "deadband" if self.sample is None else "sample"

    def last_sent(self, value: SeriesValue, ts: float, at: float) -> LastSent:
        """What is remembered of a reading that is sent at `at` in monotonic seconds."""
        return LastSent(comparable(value) if self.sample is None else ts // self.sample, ts, at)


class LastSent(NamedTuple):
    """What was sent: its value (of a text, an array or bytes only a digest, of a sample the number of its
    span), its `ts` in seconds since 1970, and when, in monotonic seconds."""

    value: float | bool | bytes
    ts: float
    at: float


Moves = dict[bytes, LastSent]
"""The last reading of each series that a chunk sends."""


def key_of(metric: str, device: str, tags: bytes) -> bytes:
    """The key of a series: metric, device, and its tags as written in the line."""
    text = f"{len(metric)} {metric}{len(device)} {device}".encode()
    return blake2b(text + tags, digest_size=_KEY_BYTES).digest()


def comparable(value: SeriesValue) -> float | bool | bytes:
    """A value as it is remembered."""
    if isinstance(value, str | list | dict):
        return blake2b(msgspec.json.encode(value), digest_size=_KEY_BYTES).digest()
    return value


class Flight(Struct):
    """The moves of a chunk that is handed in; `number` is when it began, in steps."""

    moves: Mapping[bytes, LastSent]
    number: int
    over: bool = False


class _Series(Struct):
    """One series."""

    last: LastSent | None = None
    """The value that is known as stored last."""
    seq: int = 0
    """The sequence at which it is stored."""
    number: int = 0
    """The flight that stored it; several may share a batch."""
    settled: int = 0
    """When that was settled, in steps."""
    doubtful: int = 0
    """While no value is known, a flight that began before this step cannot say what was stored last."""
    flying: dict[int, LastSent] = field(default_factory=dict)
    """The moves in flight, by the number of their flight."""
    span: Span | None = None
    """Reaches over all of them, None if it is out of date."""
    gone: int = 0
    """How many have left since `span` was made."""

    def begin(self, number: int, reading: LastSent) -> None:
        self.flying[number] = reading
        if self.span is not None:
            self.span.add(reading)

    def end(self, number: int, seq: int | None, now: int) -> None:
        reading = self.flying.pop(number)
        self.gone += 1
        if 2 * self.gone >= len(self.flying):
            # Until then it is wider than it need be, which sends more and costs less.
            self.span = None
        if seq is None:
            self.last, self.doubtful = None, now
            return
        # A flight that began when the last one was settled is the later one, whatever its sequence: the
        # stream may have been recreated.
        if (seq, number) > (self.seq, self.number) or number > self.settled:
            self.seq, self.number = seq, number
            if self.last is not None and reading.ts < self.last.ts:
                # It was handed in again, and is stored behind one that is later to the table.
                self.last, self.doubtful = None, now
            elif self.last is not None or number > self.doubtful:
                self.last = reading
        self.settled = now

    def holds_back(self, reading: LastSent, band: Band) -> bool:
        if self.last is None or moved(self.last, reading, band.width, band.after):
            return False
        if not self.flying:
            return True
        if self.span is None:
            self.span, self.gone = Span(self.flying.values()), 0
        return not self.span.moved(reading, band.width, band.after)


class Deadbands:
    """What is known of each series. A chunk gathers its moves apart; they are in flight from `begin` until
    `settle` says what became of the chunk."""

    def __init__(self, max_series: int = MAX_SERIES) -> None:
        self._max_series = max_series
        self._resting: OrderedDict[bytes, _Series] = OrderedDict()
        self._busy: dict[bytes, _Series] = {}
        self._steps = 0

    def __len__(self) -> int:
        return len(self._resting) + len(self._busy)

    def sends(self, key: bytes, reading: LastSent, band: Band, moves: Moves) -> bool:
        """Whether a reading is to be sent; then it is among the moves of its chunk. The readings of a chunk
        share its fate, so behind the first of a series that it sends only that one counts."""
        own = moves.get(key)
        if own is not None:
            held_back = not moved(own, reading, band.width, band.after)
        else:
            series = self._busy.get(key) or self._resting.get(key)
            held_back = series is not None and series.holds_back(reading, band)
        if not held_back:
            moves[key] = reading
        return not held_back

    def begin(self, moves: Mapping[bytes, LastSent]) -> Flight:
        """A chunk with these moves is handed in."""
        self._steps += 1
        flight = Flight(moves, self._steps)
        for key, reading in moves.items():
            series = self._busy.get(key)
            if series is None:
                series = self._resting.pop(key) if key in self._resting else _Series()
                self._busy[key] = series
            series.begin(flight.number, reading)
        return flight

    def settle(self, flight: Flight, seq: int | None) -> None:
        """A chunk is stored at a sequence of its stream, or (None) is not, as far as is known: its input may
        hand it in again, so the next reading of each of its series is sent. Only the first call counts."""
        if flight.over:
            return
        flight.over = True
        self._steps += 1
        for key in flight.moves:
            series = self._busy[key]
            series.end(flight.number, seq, self._steps)
            if not series.flying:
                del self._busy[key]
                if series.last is not None:
                    self._resting[key] = series
        while len(self._resting) > self._max_series:
            self._resting.popitem(last=False)

    def forget(self) -> None:
        """What was stored may be so no more: the next reading of every series is sent."""
        self._resting.clear()
        self._steps += 1
        for series in self._busy.values():
            series.last, series.doubtful = None, self._steps


def moved(last: LastSent, reading: LastSent, width: float, after: float | None) -> bool:
    """Whether a reading moved against another one: by more than `width`, or where one of them is no number,
    at all; or by `after` seconds of its `ts` or of the agent's clock."""
    if after is not None and max(abs(reading.ts - last.ts), reading.at - last.at) >= after:
        return True
    old, new = last.value, reading.value
    if isinstance(old, bool | bytes) or isinstance(new, bool | bytes):
        return type(old) is not type(new) or old != new
    return not abs(new - old) <= width


class Span:
    """How far these readings reach: the least and the greatest number, the values that are none, and the
    times. What it costs to compare with them does not grow with their number."""

    __slots__ = ("_at", "_high", "_low", "_others", "_ts_high", "_ts_low")

    def __init__(self, readings: Iterable[LastSent]) -> None:
        self._low, self._high = inf, -inf
        self._others: set[tuple[type, object]] = set()
        self._ts_low, self._ts_high, self._at = inf, -inf, inf
        for reading in readings:
            self.add(reading)

    def add(self, reading: LastSent) -> None:
        """Reach to this one as well."""
        self._ts_low, self._ts_high = min(self._ts_low, reading.ts), max(self._ts_high, reading.ts)
        self._at = min(self._at, reading.at)
        value = reading.value
        if isinstance(value, bool | bytes):
            if len(self._others) < 2:
                self._others.add((type(value), value))
        else:
            self._low, self._high = min(self._low, value), max(self._high, value)

    def moved(self, reading: LastSent, width: float, after: float | None) -> bool:
        """Whether a reading moved against any of these, as `moved` says."""
        if after is not None:
            apart = max(reading.ts - self._ts_low, self._ts_high - reading.ts, reading.at - self._at)
            if apart >= after:
                return True
        value = reading.value
        if isinstance(value, bool | bytes):
            return self._low != inf or not self._others <= {(type(value), value)}
        if self._others or self._low == inf:
            return bool(self._others)
        return not (abs(value - self._low) <= width and abs(value - self._high) <= width)
