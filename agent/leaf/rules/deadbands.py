"""Holds back readings within a deadband. Pure; times come from the caller.

Retries and refusals make it unknown which move in flight is stored last. So a reading is held back only if it
is unmoved against the stored value and every move in flight.

Memory is bounded: `MAX_SERIES` resting series, about 6 MB, and those in flight. Beyond that the oldest series
is forgotten, and its next reading is sent.
"""

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
"""A value as in its line: an array as list, bytes as object."""


class Band(NamedTuple):
    """A deadband: send when the value moved more than `width`, or `after` seconds passed (None: never).

    When sampling, the moving value is the number of the `sample` span of `ts`.
    """

    rule: str
    width: float
    after: float | None
    sample: float | None = None

    @property
    def reason(self) -> str:
        """Why a reading is left out."""
        return "deadband" if self.sample is None else "sample"

    def last_sent(self, value: SeriesValue, ts: float, at: float) -> LastSent:
        """Return the memory of a reading sent at monotonic `at`."""
        return LastSent(comparable(value) if self.sample is None else ts // self.sample, ts, at)


class LastSent(NamedTuple):
    """A sent value (digest of text, array or bytes; span number of a sample), `ts` in seconds since 1970,
    monotonic time.
    """

    value: float | bool | bytes
    ts: float
    at: float


Moves = dict[bytes, LastSent]
"""The last sent reading per series of a chunk."""


def key_of(metric: str, device: str, tags: bytes) -> bytes:
    """Return a series' key: metric, device and tags as written."""
    text = f"{len(metric)} {metric}{len(device)} {device}".encode()
    return blake2b(text + tags, digest_size=_KEY_BYTES).digest()


def comparable(value: SeriesValue) -> float | bool | bytes:
    """Return a value in remembered form."""
    if isinstance(value, str | list | dict):
        return blake2b(msgspec.json.encode(value), digest_size=_KEY_BYTES).digest()
    return value


class Flight(Struct):
    """Moves of a submitted chunk; `number` is its start in steps."""

    moves: Mapping[bytes, LastSent]
    number: int
    over: bool = False


class _Series(Struct):
    last: LastSent | None = None
    """The value known as stored last."""
    seq: int = 0
    """Its sequence."""
    number: int = 0
    """Its flight; several may share a batch."""
    settled: int = 0
    """When it settled, in steps."""
    doubtful: int = 0
    """Without known value, flights begun before this step prove nothing."""
    flying: dict[int, LastSent] = field(default_factory=dict)
    """Moves in flight by flight number."""
    span: Span | None = None
    """Covers all of them; None if outdated."""
    gone: int = 0
    """Moves removed since `span` was made."""

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
    """State of each series. A chunk's moves are in flight from `begin` to `settle`."""

    def __init__(self, max_series: int = MAX_SERIES) -> None:
        self._max_series = max_series
        self._resting: OrderedDict[bytes, _Series] = OrderedDict()
        self._busy: dict[bytes, _Series] = {}
        self._steps = 0

    def __len__(self) -> int:
        return len(self._resting) + len(self._busy)

    def sends(self, key: bytes, reading: LastSent, band: Band, moves: Moves) -> bool:
        """Tell whether to send a reading, and add it to the chunk's moves. Within a chunk only the first sent
        one of a series counts, as they share their fate.
        """
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
        """Submit a chunk's moves."""
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
        """Settle a chunk at a sequence, or None for not stored: its series' next readings are sent. Only the
        first call counts.
        """
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
        """Send the next reading of every series."""
        self._resting.clear()
        self._steps += 1
        for series in self._busy.values():
            series.last, series.doubtful = None, self._steps


def moved(last: LastSent, reading: LastSent, width: float, after: float | None) -> bool:
    """Tell whether a reading moved by more than `width` (any change if no number), or by `after` seconds of
    `ts` or clock.
    """
    if after is not None and max(abs(reading.ts - last.ts), reading.at - last.at) >= after:
        return True
    old, new = last.value, reading.value
    if isinstance(old, bool | bytes) or isinstance(new, bool | bytes):
        return type(old) is not type(new) or old != new
    return not abs(new - old) <= width


class Span:
    """Extremes, non-numeric values and times of readings, for comparison at constant cost."""

    __slots__ = ("_at", "_high", "_low", "_others", "_ts_high", "_ts_low")

    def __init__(self, readings: Iterable[LastSent]) -> None:
        self._low, self._high = inf, -inf
        self._others: set[tuple[type, object]] = set()
        self._ts_low, self._ts_high, self._at = inf, -inf, inf
        for reading in readings:
            self.add(reading)

    def add(self, reading: LastSent) -> None:
        self._ts_low, self._ts_high = min(self._ts_low, reading.ts), max(self._ts_high, reading.ts)
        self._at = min(self._at, reading.at)
        value = reading.value
        if isinstance(value, bool | bytes):
            if len(self._others) < 2:
                self._others.add((type(value), value))
        else:
            self._low, self._high = min(self._low, value), max(self._high, value)

    def moved(self, reading: LastSent, width: float, after: float | None) -> bool:
        """Tell whether a reading moved against any of these, as `moved`."""
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
