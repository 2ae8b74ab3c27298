"""Indexes batches in discarding streams, and finds batches that were evicted before the hub had them. Pure.

The index file has 40 bytes per message: sequence, batch number, readings, run (16 bytes), CRC-32. After a
power cut the lost part is read from the stream.

A batch is claimed as discarded unless the hub is known to have it; the audit subtracts arrivals. The hub
takes messages in order, so it has every message that its cursor passed. Between two looks the link consumer
skipped nothing if its deliveries grew as much as its sequence. It counts from 0 after a reconnection or a
skip; then earlier evictions are claimed.
"""

from __future__ import annotations

import os
import struct
import uuid
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from msgspec import Struct

from agent.jetstream import ConsumerInfo, StreamInfo

_RECORD: Final = struct.Struct("<QQI16sI")
_FIELDS: Final = struct.Struct("<QQI16s")
_SIZE: Final = _RECORD.size
_BLOCK: Final = 2048 * _SIZE
_NO_RUN: Final = bytes(16)
_MAX_READINGS: Final = 2**32 - 1
COMPACT_ABOVE: Final = 2**20
"""Bytes of evicted entries that cause a rewrite."""
MAX_WAITING: Final = 100_000
"""Entries waiting for an unwritable disk; others are read from the stream at the next start."""


class IndexedMessage(NamedTuple):
    """An agent's message at a sequence; ledger records have neither run nor number."""

    seq: int
    run: str = ""
    n: int = 0
    readings: int = 0


class Index:
    """The index file; `top` is its highest sequence. All but `add` raise `OSError`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting: list[bytes] = []
        self._head = self._given = self._end = 0
        self._torn = False
        self.top = 0

    def load(self) -> None:
        """Load up to the first invalid entry."""
        self._forget()
        self._path.touch(mode=0o600)
        self._end = self._path.stat().st_size // _SIZE * _SIZE
        for at, (seq, *others, crc) in self._records(0):
            if zlib.crc32(_FIELDS.pack(seq, *others)) != crc:
                self._end = at
                break
            self.top = max(self.top, seq)
        os.truncate(self._path, self._end)

    def clear(self) -> None:
        """Remove everything, for another stream."""
        self._path.touch(mode=0o600)
        os.truncate(self._path, 0)
        self._forget()

    def _forget(self) -> None:
        self._waiting, self._torn = [], False
        self._head = self._given = self._end = self.top = 0

    def add(self, entry: IndexedMessage) -> None:
        """Add a stored message; `flush` writes it."""
        self._torn = self._torn or len(self._waiting) >= MAX_WAITING
        if self._torn:
            return
        run = uuid.UUID(entry.run).bytes if entry.run else _NO_RUN
        data = _FIELDS.pack(entry.seq, entry.n, min(entry.readings, _MAX_READINGS), run)
        self._waiting.append(data + struct.pack("<I", zlib.crc32(data)))
        self.top = max(self.top, entry.seq)

    def flush(self) -> None:
        if not self._waiting:
            return
        data = b"".join(self._waiting)
        with self._path.open("r+b") as file:
            file.seek(self._end)
            file.write(data)
        self._end += len(data)
        self._waiting.clear()

    def front(self, last: int, most: int = 50_000) -> tuple[list[IndexedMessage], int]:
        """Return the first entries up to `last`, and the sequence up to which they are complete.

        Below `last`, the rest follows after `drop`. A late acknowledged message may come after a higher one.
        """
        self.flush()
        found: list[IndexedMessage] = []
        self._given = self._head
        for at, (seq, n, readings, run, _) in self._records(self._head):
            if seq > last:
                break
            self._given = at + _SIZE
            found.append(
                IndexedMessage(seq, "" if run == _NO_RUN else str(uuid.UUID(bytes=run)), n, readings)
            )
            if len(found) == most:
                return found, min(last, max(message.seq for message in found))
        return found, last

    def drop(self) -> None:
        """Drop the entries of `front`; the file keeps them until `compact`."""
        self._head = self._given

    def _records(self, offset: int) -> Iterator[tuple[int, tuple[int, int, int, bytes, int]]]:
        with self._path.open("rb") as file:
            file.seek(offset)
            while offset < self._end and (block := file.read(min(_BLOCK, self._end - offset))):
                for record in _RECORD.iter_unpack(block[: len(block) // _SIZE * _SIZE]):
                    yield offset, record
                    offset += _SIZE

    def compact(self) -> None:
        """Rewrite the file without dropped entries, if worthwhile."""
        self.flush()
        if not self._head or self._end > self._head <= max(COMPACT_ABOVE, self._end // 2):
            return
        aside = self._path.with_name(f".{self._path.name}.new")
        with self._path.open("rb") as old, aside.open("wb") as new:
            os.fchmod(new.fileno(), 0o600)
            old.seek(self._head)
            while block := old.read(_BLOCK):
                new.write(block)
        aside.replace(self._path)
        self._head, self._given, self._end = 0, 0, self._end - self._head


VERSION: Final = 1
FULL: Final = "stream_full"
PURGED: Final = "purged"
"""Reasons: the full stream made room, or a person or program purged it."""

MAX_RANGES: Final = 1_000
"""Named ranges per run; the lowest of more are only summed."""
MAX_RUNS: Final = 64
MAX_DOUBTFUL: Final = 20_000
"""Messages sent but not known at the hub when evicted; the link has at most 10,000 in flight."""

Range = tuple[int, int, int, str]
"""First, last, readings (or direct messages), reason."""


def extend(ranges: list[Range], first: int, last: int, count: int, reason: str) -> bool:
    """Insert numbers into ordered ranges, merging neighbours of equal reason; False if present."""
    at = bisect_right(ranges, first, key=lambda range_: range_[0])
    before = ranges[at - 1] if at else None
    if before is not None and last <= before[1]:
        return False
    if before is not None and before[1] == first - 1 and before[3] == reason:
        first, count, at = before[0], count + before[2], at - 1
        del ranges[at]
    after = ranges[at] if at < len(ranges) else None
    if after is not None and after[0] == last + 1 and after[3] == reason:
        last, count = after[1], count + after[2]
        del ranges[at]
    ranges.insert(at, (first, last, count, reason))
    return True


class EvictedRun(Struct):
    """Discards of one run."""

    ranges: list[Range] = []
    """Batch numbers."""
    readings: int = 0
    """Number of readings."""
    recorded: int = 0
    """Sequence of a record of this, held by stream or hub; 0 if one is due."""


class EvictionRecord(Struct):
    """One class, its stream's creation time, and the link `epoch` at judgement."""

    version: int = VERSION
    created: str = ""
    judged: int = 0
    """Sequence up to which all is judged."""
    taken: int = 0
    """Sequence up to which the hub has all."""
    epoch: str = ""
    delivered: int = 0
    """The link consumer's delivered sequence then, and its `deliveries`."""
    deliveries: int = 0
    doubtful: list[IndexedMessage] = []
    """Sent, and possibly at the hub."""
    runs: dict[str, EvictedRun] = {}
    gone: list[Range] = []
    """Discarded sequences with direct messages."""
    trimmed: list[tuple[int, int]] = []
    trimmed_in: str = ""
    """Epoch in which the hub confirmed trimmed messages; in a later one, as after a restore, the hub may have
    less.
    """

    def begin(self, created: str, judged: int) -> None:
        """Start with a stream unknown up to this sequence."""
        self.created, self.judged, self.taken, self.epoch = created, judged, 0, ""
        self.doubtful, self.gone, self.trimmed = [], [], []

    def claim(self, entry: IndexedMessage, reason: str) -> int:
        """Claim a discarded agent message; returns its readings."""
        for claims in self.runs.values():
            if claims.recorded == entry.seq:
                claims.recorded = 0
        if not entry.run:
            return 0
        known = self.runs.setdefault(entry.run, EvictedRun())
        if not extend(known.ranges, entry.n, entry.n, entry.readings, reason):
            return 0
        known.readings += entry.readings
        known.recorded = 0
        if len(known.ranges) > MAX_RANGES:
            del known.ranges[0]
        return entry.readings

    def claim_sequences(self, first: int, last: int, direct: int, reason: str) -> None:
        """Claim discarded sequences."""
        extend(self.gone, first, last, direct, reason)
        if len(self.gone) > MAX_RANGES:
            del self.gone[0]

    def forget_runs(self, own: str) -> None:
        """Keep only the newest runs (UUIDv7 order)."""
        for run in sorted(self.runs)[:-MAX_RUNS]:
            if run != own:
                del self.runs[run]


class StreamObservation(Struct, frozen=True):
    """A class's stream, then the link consumer of an `epoch`."""

    info: StreamInfo
    consumer: ConsumerInfo
    epoch: str
    confirmed: int
    """Sequence up to which the hub has this epoch."""


class EvictionVerdict(Struct, frozen=True):
    """Evicted messages up to `taken` are at the hub, up to `doubtful` maybe, up to `gone` not.

    `settled` tells whether earlier doubtful ones above `taken` are surely not there.
    """

    taken: int
    doubtful: int
    gone: int
    settled: bool


def judge(known: EvictionRecord, seen: StreamObservation) -> EvictionVerdict:
    """Judge the messages below the stream's first one."""
    taken, doubtful, settled = known.taken, 0, True
    if seen.epoch != known.epoch:
        # It begins after the last place on which leaf and hub agree.
        taken = seen.consumer.start - 1
    elif seen.consumer.delivered - known.delivered == seen.consumer.deliveries - known.deliveries:
        taken = max(taken, seen.confirmed, seen.consumer.ack_floor)
        doubtful, settled = seen.consumer.delivered, False
    gone = max(known.judged, seen.info.first - 1)
    taken_of_gone = min(taken, gone)
    return EvictionVerdict(taken_of_gone, min(max(doubtful, taken_of_gone), gone), gone, settled)


def remember(known: EvictionRecord, seen: StreamObservation, verdict: EvictionVerdict) -> None:
    """Apply the verdict as the next start."""
    if known.epoch not in ("", seen.epoch):
        known.taken = seen.consumer.start - 1
    elif not verdict.settled:
        known.taken = max(known.taken, seen.confirmed, seen.consumer.ack_floor)
    elif seen.confirmed >= seen.info.first:
        known.taken = max(known.taken, seen.confirmed)
    known.judged, known.epoch = verdict.gone, seen.epoch
    known.delivered, known.deliveries = seen.consumer.delivered, seen.consumer.deliveries
