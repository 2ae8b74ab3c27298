"""Keeps a file of synced records. A kill truncates only its end; damaged records are skipped."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec
import structlog
from msgspec import Raw, Struct

from agent.base.files import write_at, write_private
from agent.leaf.rules.windows import OpenWindow

_MAGIC: Final = b"PTLAGG1\n"
"""Header of this version; records follow, each with length and a CRC-32 over both."""
_HEAD: Final = struct.Struct("<II")
_BEGIN: Final = b'{"type":"'
"""Start of each record."""
_LEAST: Final = 4 * 2**20
"""Bytes below which the file is not rewritten."""

_EFFECT: Final = (
    "readings acknowledged into open windows are lost if the records held any, and aggregates that the "
    "records closed are stored a second time"
)

log = structlog.get_logger("aggregates")


class KnownKey(Struct, array_like=True):
    """A request's aggregated `lines` (hex bitmap), content `mark`, and remaining seconds from `wall` and
    `clock`.
    """

    name: str
    mark: bytes
    lines: str
    left: float
    wall: int
    clock: str


class Place(Struct, array_like=True):
    """A pull input's last aggregated piece: number, begin, end, `lines`."""

    input: str
    cls: str
    number: int
    before: str | None
    position: str
    lines: str = "0"


class WrittenAt(Struct, array_like=True):
    """A record's time by `wall` (ns since 1970) and the machine's other clocks."""

    wall: int
    clock: str


class TakenRecord(Struct, tag="taken", omit_defaults=True):
    """A chunk's additions to windows, and their origin."""

    windows: list[OpenWindow]
    key: KnownKey | None = None
    place: Place | None = None
    at: WrittenAt | None = None


class Closing(Struct, tag="closing"):
    """Piece `number`: closed windows and their lines by class."""

    number: int
    keys: list[bytes]
    rows: list[tuple[str, Raw]]


class Snapshot(Struct, tag="snapshot"):
    """The result of all earlier records: last piece number (`closing` if unstored), windows and `closed`
    parts.
    """

    number: int
    windows: list[OpenWindow]
    closed: list[tuple[bytes, int]]
    keys: list[KnownKey]
    places: list[Place]
    closing: Closing | None
    at: WrittenAt | None = None
    ages: list[float] = []
    """Seconds that each window was open."""


Record = TakenRecord | Closing | Snapshot
_DECODER: Final = msgspec.json.Decoder(Record)


class UnsureError(OSError):
    """Records may or may not be in the file."""


class RecordLog:
    """One file with one writer at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._end = 0
        self._rewritten = 0
        self._whole = False
        self.damaged = 0
        """Damaged stretches skipped by `read`."""

    @property
    def to_rewrite(self) -> bool:
        """Whether the file is missing, large or has an unknown end."""
        return not self._whole or self._end > max(_LEAST, 4 * self._rewritten)

    def read(self) -> list[Record]:
        """Return all whole records. Raises `OSError`, and `ValueError` or `MsgspecError` for
        another version.
        """
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return []
        if not data.startswith(_MAGIC):
            raise ValueError(f"{self._path} was written by another release of Petiole")
        records, at, skipped = list[Record](), len(_MAGIC), 0
        while at < len(data):
            record = _record_at(data, at)
            if record is not None:
                records.append(_DECODER.decode(record))
                at += _HEAD.size + len(record)
            elif (behind := _next_record(data, at)) is not None:
                self.damaged, skipped, at = self.damaged + 1, skipped + behind - at, behind
            else:
                break
        if self.damaged:
            log.error(
                "damaged records of aggregates skipped",
                path=str(self._path),
                stretches=self.damaged,
                bytes=skipped,
                effect=_EFFECT,
            )
        if at < len(data):
            log.warning("incomplete end of log cut off", bytes=len(data) - at)
        self._whole = not self.damaged and at == len(data)
        self._end = at
        return records

    def append(self, records: Iterable[Record]) -> None:
        """Append records durably. Raises `OSError` if surely not written, `UnsureError` if only `rewrite` may
        follow.
        """
        data = b"".join(_framed(msgspec.json.encode(record)) for record in records)
        self._whole = False
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            try:
                write_at(descriptor, data, self._end)
                os.fdatasync(descriptor)
            except OSError as error:
                try:
                    os.ftruncate(descriptor, self._end)
                    os.fsync(descriptor)
                except OSError:
                    raise UnsureError(*error.args) from None
                raise
        finally:
            os.close(descriptor)
        self._end += len(data)
        self._whole = True

    def rewrite(self, snapshot: Snapshot) -> None:
        """Replace all records. Raises `OSError`, with old or new contents in place."""
        data = _MAGIC + _framed(msgspec.json.encode(snapshot))
        self._whole = False
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        write_private(self._path, data)
        self._end = self._rewritten = len(data)
        self._whole = True


def _framed(record: bytes) -> bytes:
    size = len(record).to_bytes(4, "little")
    return _HEAD.pack(len(record), zlib.crc32(record, zlib.crc32(size))) + record


def _record_at(data: bytes, at: int) -> bytes | None:
    """Return the whole record at a place, or None."""
    begin = at + _HEAD.size
    if begin > len(data):
        return None
    length, _ = _HEAD.unpack_from(data, at)
    if begin + length > len(data):
        return None
    record = data[begin : begin + length]
    return record if _framed(record) == data[at : begin + length] else None


def _next_record(data: bytes, at: int) -> int | None:
    """Return the start of the next whole record, or None."""
    begin = data.find(_BEGIN, at + _HEAD.size + 1)
    while begin >= 0:
        if _record_at(data, begin - _HEAD.size) is not None:
            return begin - _HEAD.size
        begin = data.find(_BEGIN, begin + 1)
    return None
