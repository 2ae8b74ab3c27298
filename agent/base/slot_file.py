"""A small record that is written again and again in place, for a card of flash: to replace a whole file by a
rename writes 120 kB and flushes six times on ext4 (a new file, its directory and the journal, each synced),
to overwrite a block of a file that is there writes that block and flushes once."""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from typing import Final

SLOT: Final = 64 * 1024
"""Bytes of one slot, its head with them."""
_HEAD: Final = struct.Struct("<4sIQI")
_MAGIC: Final = b"PTL1"
"""Of this form of a slot: length and number of the record, and the CRC-32 of both and of the record."""


class SlotFile:
    """Two slots, written in turn, so that a crash while one is written leaves the other whole. One writer at
    a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._number = 0

    def read(self) -> list[bytes]:
        """The whole records in the file, the newest first; none where there is no file. Raises `OSError`."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return []
        found = [record for at in (0, SLOT) if (record := _parse(data[at : at + SLOT])) is not None]
        found.sort(reverse=True)
        if found:
            self._number = found[0][0]
        return [record for _, record in found]

    def write(self, record: bytes) -> bool:
        """Write a record over the older of both; returns False where it does not fit into a slot. Returns
        once it is on disk. Raises `OSError`."""
        if not self._number:
            self.read()
        number = self._number + 1
        if _HEAD.size + len(record) > SLOT:
            return False
        head = _HEAD.pack(_MAGIC, len(record), number, _checksum(number, record))
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(descriptor).st_size < 2 * SLOT:
                # All blocks are there from the first write on, so that none of the later ones changes more.
                os.pwrite(descriptor, bytes(2 * SLOT), 0)
                os.fsync(descriptor)
            os.pwrite(descriptor, head + record, SLOT * (number % 2))
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
        self._number = number
        return True


def _checksum(number: int, record: bytes) -> int:
    return zlib.crc32(record, zlib.crc32(struct.pack("<QI", number, len(record))))


def _parse(slot: bytes) -> tuple[int, bytes] | None:
    """Number and record of a slot, None for one that was never written, or not to its end."""
    if len(slot) < _HEAD.size:
        return None
    magic, length, number, checksum = _HEAD.unpack_from(slot)
    record = slot[_HEAD.size : _HEAD.size + length]
    if magic != _MAGIC or len(record) != length or _checksum(number, record) != checksum:
        return None
    return number, record
