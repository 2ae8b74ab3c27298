"""Tracks the stored source times of each variable, and the holes that the server's history may fill.

A variable's readings are known by source time and value. A hole lies between the last stored value before a
break and the first value after it. All changes are records of a log, which `CoverageFile` keeps: a record is
written before its piece is stored, and counts after a restart only if the core has stored the piece.
"""

from __future__ import annotations

import asyncio
import math
import os
import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

from msgspec import Struct, field
from structlog.typing import FilteringBoundLogger

from agent.base.files import private_directory, write_private
from agent.base.logs import LogEdge
from agent.base.wait import loop_time

LOOKBACK: Final = 86_400.0
"""Seconds before the last message from which history is read at most, so that a long silent variable
costs little.
"""
MAX_HOLES: Final = 16
"""Holes of one variable; a further hole is named and not filled."""
MAX_TRACKS: Final = 50_000
"""Variables and conditions; beyond, the one heard first is forgotten."""
_SIZE: Final = 8
_RECORD: Final = struct.Struct("<qB8sd8sI")
"""The last number is the CRC-32 of the others."""
_MAGIC: Final = b"petiole-source-times-1\n".ljust(_RECORD.size, b"\0")
_COMPACT: Final = 8 * 2**20
"""Bytes of the log from which it is rewritten."""
_SYNC_SECONDS: Final = 1.0
_UNKEPT: Final = "history may be stored twice after a restart"
_ROUNDED: Final = (1_000.0, 1.0)
"""Steps per second to which a history may cut its times."""


def digest(*parts: bytes) -> bytes:
    """Return a short digest of a variable or value."""
    return blake2b(b"\0".join(parts), digest_size=_SIZE).digest()


class Kind(IntEnum):
    """What a record notes."""

    LIVE = 1
    """A value of the subscription."""
    FILLED = 2
    """A value of the history."""
    OPENED = 3
    """A hole that history may fill, from the last value on; `time` is that of the last message."""
    LOST = 4
    """A hole without history."""
    ENDED = 5
    """The open hole ends at `time`, for the variable has no value now."""
    CLOSED = 6
    """The first hole is filled or given up."""
    HEARD = 7
    """The time of a message of the server."""
    EVENT = 8
    """An event of a condition, or of a source and type; `value` is its identity."""


_KINDS: Final = {int(kind): kind for kind in Kind}


class Record(NamedTuple):
    kind: Kind
    key: bytes
    time: float = 0.0
    value: bytes = bytes(_SIZE)


class Point(Struct):
    """A source time and the digests of the values stored at it."""

    time: float
    values: set[bytes]


class Hole(Struct):
    """Missing values behind `start`, up to `end` (None: up to the next value)."""

    start: Point
    floor: float
    """Earlier times are not read, unless the hole ends before."""
    end: Point | None = None
    readable: bool = True

    @property
    def place(self) -> tuple[float, int]:
        """Return how far it is filled."""
        return self.start.time, len(self.start.values)

    @property
    def begin(self) -> float:
        """Return the time from which to read."""
        if self.end is None or self.end.time <= self.floor:
            return self.start.time
        return max(self.start.time, self.floor)


class Track(Struct):
    """One variable."""

    live: Point
    holes: list[Hole] = field(default_factory=list)

    @property
    def open(self) -> Hole | None:
        return self.holes[-1] if self.holes and self.holes[-1].end is None else None


class Coverage:
    """All variables of an input. Every method with effect is a record, so that a log replays it."""

    def __init__(self) -> None:
        self.tracks: dict[bytes, Track] = {}
        self._holed: set[bytes] = set()
        self.heard = 0.0
        """The newest time of a message of the server."""

    def note(self, record: Record) -> bool:
        """Apply a record; returns whether a value is a new reading."""
        kind, key, time, value = record
        if kind is Kind.HEARD:
            self.heard = max(self.heard, time)
            return False
        track = self.tracks.get(key)
        if kind is Kind.EVENT and track is not None and value in track.live.values:
            return False  # a refresh of conditions sends it again
        if kind in (Kind.LIVE, Kind.EVENT):
            return self._live(key, track, time, value)
        if track is None:
            return False
        if kind is Kind.FILLED:
            return bool(track.holes) and track.holes[0].end is not None and _fill(track, time, value)
        hole = track.open
        if kind is Kind.ENDED:
            if hole is not None:
                hole.end = Point(max(time, hole.start.time), set())
                if not hole.readable:
                    track.holes.remove(hole)
        elif kind is Kind.CLOSED:
            del track.holes[:1]
        elif hole is None and len(track.holes) < MAX_HOLES:
            start = Point(track.live.time, set(track.live.values))
            track.holes.append(Hole(start, time - LOOKBACK, readable=kind is Kind.OPENED))
            self._holed.add(key)
        return False

    def _live(self, key: bytes, track: Track | None, time: float, value: bytes) -> bool:
        if track is None:
            self.tracks[key] = Track(Point(time, {value}))
            if len(self.tracks) > MAX_TRACKS:
                oldest = next(iter(self.tracks))
                del self.tracks[oldest]
                self._holed.discard(oldest)
            return True
        hole = track.open
        if hole is not None:
            start = hole.start
            hole.end = Point(time, {value})
            is_same = time == start.time and value in start.values
            if is_same or time < start.time or not hole.readable:
                # No value is newer than the stored ones, or the source's clock went back.
                track.holes.remove(hole)
            if is_same:
                return False
        elif track.holes and (end := track.holes[-1].end) is not None:
            begin = track.holes[-1].start
            if end.time == time:
                end.values.add(value)
            elif not end.values and time < end.time:
                # A hole that ended without a value reaches to the first value.
                if time == begin.time and value in begin.values:
                    return False
                end.time, end.values = max(time, begin.time), {value}
        if track.live.time == time:
            track.live.values.add(value)
        else:
            track.live = Point(time, {value})
        return True

    def holes(self) -> Iterator[tuple[bytes, Hole]]:
        """Yield the first hole of each variable, if it has an end."""
        for key in list(self._holed):
            holes = self.tracks[key].holes
            if not holes:
                self._holed.discard(key)
            elif holes[0].end is not None:
                yield key, holes[0]

    def went_back(self, key: bytes, time: float) -> bool:
        """Tell whether a variable's first value after a break is older than its last before."""
        track = self.tracks.get(key)
        hole = None if track is None else track.open
        return hole is not None and hole.readable and time < hole.start.time

    def records(self) -> Iterator[Record]:
        """Yield records that make this state."""
        yield Record(Kind.HEARD, bytes(_SIZE), self.heard)
        for key, track in self.tracks.items():
            for hole in track.holes:
                yield from _at(key, hole.start)
                yield Record(Kind.OPENED if hole.readable else Kind.LOST, key, hole.floor + LOOKBACK)
                if hole.end is not None and not hole.end.values:
                    yield Record(Kind.ENDED, key, hole.end.time)
                elif hole.end is not None:
                    yield from _at(key, hole.end)
            if not track.holes or (track.holes[-1].end is not None and track.holes[-1].end.values):
                yield from _at(key, track.live)


def _at(key: bytes, point: Point) -> Iterator[Record]:
    for value in sorted(point.values):
        yield Record(Kind.LIVE, key, point.time, value)


def _fill(track: Track, time: float, value: bytes) -> bool:
    hole = track.holes[0]
    start = hole.start
    if time < start.time or (time == start.time and value in start.values) or has_reached(hole, time, value):
        return False
    if time == start.time:
        start.values.add(value)
    else:
        hole.start = Point(time, {value})
    if hole is track.holes[-1] and hole.end is not None and not hole.end.values:
        track.live = Point(time, set(hole.start.values))
    return True


def has_reached(hole: Hole, time: float, value: bytes) -> bool:
    """Tell whether a value of the history is the end of a hole, or lies behind it.

    Some histories keep whole milliseconds or seconds: such a time is the end if its value is.
    """
    end = hole.end
    assert end is not None, "only a hole with an end is filled"
    if time > end.time:
        return True
    if value not in end.values:
        return False
    return time == end.time or any(
        math.floor(end.time * steps) / steps == time and time > hole.start.time for steps in _ROUNDED
    )


class CoverageFile:
    """The log of one input in a file, or only in memory.

    It is synced once a second at most. After a power cut the newest records may be missing: `is_behind`.
    """

    def __init__(self, path: Path | None, log: FilteringBoundLogger) -> None:
        self._path, self._log = path, log
        self._size: int | None = None
        self._synced = -_SYNC_SECONDS
        self._writing = LogEdge(log, "source times are kept again")
        self.coverage = Coverage()
        self.is_behind = False
        """Whether the log ends before the stored data."""

    async def load(self, number: int) -> None:
        """Read the records up to the stored piece `number`."""
        self.coverage, self.is_behind = Coverage(), False
        if self._path is not None:
            newest = await asyncio.to_thread(self._read, self._path, number)
            self.is_behind = newest is not None and newest < number
            # The file has records of pieces that were never stored, whose numbers come again.
            await asyncio.to_thread(self._rewrite, self._path, number)

    async def tidy(self, number: int) -> None:
        """Rewrite a long or broken log. The piece `number` is stored, and no later record was applied."""
        most = max(_COMPACT, 10 * _RECORD.size * len(self.coverage.tracks))
        if self._path is not None and (self._size is None or self._size > most):
            await asyncio.to_thread(self._rewrite, self._path, number)

    async def write(self, number: int, records: Iterable[Record]) -> None:
        """Append records that count once the piece `number` is stored."""
        data = _packed(number, records)
        if self._path is not None and self._size is not None and data:
            await asyncio.to_thread(self._append, self._path, self._size, data)

    def note(self, kind: Kind, keys: Iterable[bytes], time: float = 0.0) -> list[Record]:
        """Apply records without value, and return them for `write`."""
        records = [Record(kind, key, time) for key in keys]
        for record in records:
            self.coverage.note(record)
        return records

    def _read(self, path: Path, number: int) -> int | None:
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._log.warning("source times not read", reason=str(error))
            return None
        if not data.startswith(_MAGIC):
            self._log.warning("source times not read", reason=f"{path} has another format")
            return None
        newest = 0
        for at in range(_RECORD.size, len(data) - _RECORD.size + 1, _RECORD.size):
            noted, kind, key, time, value, crc = _RECORD.unpack_from(data, at)
            if crc32(data[at : at + _RECORD.size - 4]) != crc or kind not in _KINDS:
                break  # a power cut may leave zeros
            newest = max(newest, noted)
            if noted <= number:
                self.coverage.note(Record(_KINDS[kind], key, time, value))
        return newest

    def _append(self, path: Path, size: int, data: bytes) -> None:
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                if os.pwrite(descriptor, data, size) < len(data):
                    raise OSError("the disk is full")
                if loop_time() - self._synced >= _SYNC_SECONDS:
                    os.fdatasync(descriptor)
                    self._synced = loop_time()
            finally:
                os.close(descriptor)
        except OSError as error:
            self._size = None
            self._writing.begin(_UNKEPT, error=str(error))
        else:
            self._size = size + len(data)

    def _rewrite(self, path: Path, number: int) -> None:
        data = _MAGIC + _packed(number, self.coverage.records())
        try:
            private_directory(path.parent)
            write_private(path, data)
        except OSError as error:
            self._size = None
            self._writing.begin(_UNKEPT, error=str(error))
        else:
            self._size = len(data)
            self._writing.end()


def _packed(number: int, records: Iterable[Record]) -> bytes:
    bodies = (_RECORD.pack(number, *record, 0)[:-4] for record in records)
    return b"".join(body + crc32(body).to_bytes(4, "little") for body in bodies)
