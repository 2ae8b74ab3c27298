"""Remembers which batch is at which sequence of a stream, in a file in the order of the stream: what a
sequence held is known after the message is gone, and after a kill. Why a message went is not its concern.

A record is 40 bytes: the sequence, the number of the batch, its readings, the 16 bytes of its run, and the
CRC-32 of these. What a kill or a power cut has kept from the file's end is read from the stream again.
"""

from __future__ import annotations

import os
import struct
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

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
        """Write what was added."""
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
                return found, min(last, max(one.seq for one in found))
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
