"""What a stream with the policy `old` has discarded: which batches of which runs, how many readings, and
which direct messages. Here are its index and its record; both know nothing of the server.

The index remembers which batch is at which sequence, in a file in the order of the stream: what a sequence
held is known after the message is gone. Its records have 40 bytes: the sequence, the number of the batch, its
readings, the 16 bytes of its run, and their CRC-32. What a power cut took is read from the stream again.

The record says what a stream evicted, and how that is classified and kept on disk; it is pure. A batch is
claimed when it went from the stream before the hub was known to have it. That is at most too much, never too
little: the audit, which sees what arrived, subtracts what the hub had all the same.

The hub takes a stream in order, so it has every message that was still there when its cursor passed it. Of
those that went between two looks, the link consumer tells: while its count of deliveries has grown by as much
as the sequence it has delivered, it has skipped none. After a reconnection of the link it counts from zero
(seen on nats-server 2.15.1), as it does where it skipped: then what had gone by then is claimed.
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
"""Bytes of what has gone from the stream above which the file is rewritten."""
MAX_WAITING: Final = 100_000
"""Records that wait for a disk that takes none. What comes then is read from the stream at the next start."""


class IndexedMessage(NamedTuple):
    """A message of the agent at a sequence; a ledger record and the like has neither run nor number."""

    seq: int
    run: str = ""
    n: int = 0
    readings: int = 0


class Index:
    """The file at `path`; `top` is the highest sequence in it. All but `add` raise `OSError`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting: list[bytes] = []
        self._head = self._given = self._end = 0
        self._torn = False
        self.top = 0

    def load(self) -> None:
        """Take up what is there, up to the first record that cannot be one."""
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
        """Forget everything: the stream is another one."""
        self._path.touch(mode=0o600)
        os.truncate(self._path, 0)
        self._forget()

    def _forget(self) -> None:
        self._waiting, self._torn = [], False
        self._head = self._given = self._end = self.top = 0

    def add(self, entry: IndexedMessage) -> None:
        """A message was stored; `flush` writes it."""
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
        """What comes first, up to sequence `last`, and up to which sequence that is all: where that is below
        `last`, the rest comes after `drop`. A message whose acknowledgement came late may stand behind a
        higher one: it comes with what follows."""
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
        """Leave out what `front` has given; the file keeps it until `compact`."""
        self._head = self._given

    def _records(self, offset: int) -> Iterator[tuple[int, tuple[int, int, int, bytes, int]]]:
        with self._path.open("rb") as file:
            file.seek(offset)
            while offset < self._end and (block := file.read(min(_BLOCK, self._end - offset))):
                for record in _RECORD.iter_unpack(block[: len(block) // _SIZE * _SIZE]):
                    yield offset, record
                    offset += _SIZE

    def compact(self) -> None:
        """Write the file without what was dropped, where that is worth it."""
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
"""Reasons: the stream was full and made room for newer messages; or it was purged by a person or program."""

MAX_RANGES: Final = 1_000
"""Ranges of a run that are named; of more than that the lowest are in the sums only."""
MAX_RUNS: Final = 64
MAX_DOUBTFUL: Final = 20_000
"""Messages that were sent and not known to be at the hub when they went; the link has 10,000 of them under
way at most."""

Range = tuple[int, int, int, str]
"""First, last, how many readings (or direct messages), and the reason."""


def extend(ranges: list[Range], first: int, last: int, count: int, reason: str) -> bool:
    """Put numbers into ranges that are in order; False where they are there already. A neighbour of the same
    reason is joined."""
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
    """What was discarded of one run."""

    ranges: list[Range] = []
    """Of numbers of batches."""
    readings: int = 0
    """All their readings."""
    recorded: int = 0
    """Where a record says so that the stream still holds or the hub has; 0 if one is due."""


class EvictionRecord(Struct):
    """One class, whose stream was created at `created`; the link had this `epoch` when it was judged."""

    version: int = VERSION
    created: str = ""
    judged: int = 0
    """Up to which sequence all is judged."""
    taken: int = 0
    """Up to which sequence all is known to be at the hub."""
    epoch: str = ""
    delivered: int = 0
    """Up to which sequence the link consumer had delivered then, and how often (`deliveries`)."""
    deliveries: int = 0
    doubtful: list[IndexedMessage] = []
    """What was sent and may be at the hub or not."""
    runs: dict[str, EvictedRun] = {}
    gone: list[Range] = []
    """The sequences that were discarded, with how many direct messages stood there."""
    trimmed: list[tuple[int, int]] = []
    trimmed_in: str = ""
    """What the agent trims, and the epoch over which the hub confirmed it: a look over that one that finds it
    gone knows that it is at the hub; over the next one the hub may hold less, as after it was restored."""

    def begin(self, created: str, judged: int) -> None:
        """The stream is one of which nothing is known up to this sequence."""
        self.created, self.judged, self.taken, self.epoch = created, judged, 0, ""
        self.doubtful, self.gone, self.trimmed = [], [], []

    def claim(self, entry: IndexedMessage, reason: str) -> int:
        """A message of the agent was discarded; returns its readings."""
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
        """These sequences were discarded."""
        extend(self.gone, first, last, direct, reason)
        if len(self.gone) > MAX_RANGES:
            del self.gone[0]

    def forget_runs(self, own: str) -> None:
        """Keep the newest runs only; runs are UUIDv7, so a later one is greater."""
        for run in sorted(self.runs)[:-MAX_RUNS]:
            if run != own:
                del self.runs[run]


class StreamObservation(Struct, frozen=True):
    """A class's stream and then the link consumer of an `epoch` at one moment."""

    info: StreamInfo
    consumer: ConsumerInfo
    epoch: str
    confirmed: int
    """Up to where the hub is known to hold all of this epoch."""


class EvictionVerdict(Struct, frozen=True):
    """Of the messages that are gone: those up to `taken` are at the hub, the next ones up to `doubtful` were
    sent and may be, and the rest up to `gone` are not. `settled` says whether those that were in doubt before
    and are above `taken` are not there either."""

    taken: int
    doubtful: int
    gone: int
    settled: bool


def judge(known: EvictionRecord, seen: StreamObservation) -> EvictionVerdict:
    """What became of the messages below the stream's first one."""
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
    """Take the verdict over: the next one starts here."""
    if known.epoch not in ("", seen.epoch):
        known.taken = seen.consumer.start - 1
    elif not verdict.settled:
        known.taken = max(known.taken, seen.confirmed, seen.consumer.ack_floor)
    elif seen.confirmed >= seen.info.first:
        known.taken = max(known.taken, seen.confirmed)
    known.judged, known.epoch = verdict.gone, seen.epoch
    known.delivered, known.deliveries = seen.consumer.delivered, seen.consumer.deliveries
