"""Remembers each source's newest stored value in a file, so that repeated values are stored once.

The file has 16-byte slots of source and value digests, overwritten in place without sync; after a power cut
some values may be stored twice.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple

from structlog.typing import FilteringBoundLogger

from agent.base.logs import LogEdge

MAX_SOURCES: Final = 65_536
"""Most sources; beyond, the one silent longest is forgotten."""
_HALF: Final = 8
_SLOT: Final = 2 * _HALF
_MAGIC: Final = b"petiole-values1\n"
"""The first slot has the file's version."""
_FREE: Final = bytes(_HALF)


class SourceValue(NamedTuple):
    """Digests of a source and its value."""

    source: bytes
    content: bytes


def value_of(source: bytes, content: bytes, *names: str) -> SourceValue:
    """Return the digests of a value under `names`."""
    digest = blake2b("\0".join(names).encode(errors="surrogatepass") + b"\0", digest_size=_HALF)
    digest.update(content)
    return SourceValue(blake2b(source, digest_size=_HALF).digest(), digest.digest())


class ValueMemory:
    """The values of one input in a file, or only in memory."""

    def __init__(self, path: Path | None, log: FilteringBoundLogger) -> None:
        self._values = path
        self._slots: dict[bytes, int] = {}
        self._contents: list[bytes] = []
        self._free: list[int] = []
        self._log = log
        self._writing = LogEdge(log, "values of sources are remembered again")

    def load(self) -> None:
        """Read the values; an unreadable file counts as empty."""
        if self._values is None:
            return
        self._slots, self._contents, self._free = {}, [], []
        try:
            data = self._values.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            self._log.warning("values of sources not read", reason=str(error))
            return
        if not data.startswith(_MAGIC):
            self._log.warning("values of sources not read", reason=f"{self._values} has another format")
            with contextlib.suppress(OSError):
                self._values.unlink()
            return
        for at in range(_SLOT, min(len(data), _SLOT * (MAX_SOURCES + 1)) - _SLOT + 1, _SLOT):
            source = data[at : at + _HALF]
            if source in self._slots or source == _FREE:  # a power cut may leave zeros
                self._free.append(len(self._contents))
            else:
                self._slots[source] = len(self._contents)
            self._contents.append(data[at + _HALF : at + _SLOT])

    def is_known(self, value: SourceValue) -> bool:
        """Tell whether this is its source's newest stored value."""
        slot = self._slots.get(value.source)
        return slot is not None and self._contents[slot] == value.content

    def remember(self, values: Mapping[bytes, bytes]) -> None:
        """Note stored values."""
        changed = []
        for source, content in values.items():
            slot = self._slots.pop(source, None)
            if slot is None and self._free:
                slot = self._free.pop()
            elif slot is None and len(self._contents) < MAX_SOURCES:
                slot = len(self._contents)
                self._contents.append(_FREE)
            elif slot is None:
                slot = self._slots.pop(next(iter(self._slots)))
            elif self._contents[slot] == content:
                self._slots[source] = slot
                continue
            self._slots[source] = slot
            self._contents[slot] = content
            changed.append((slot, source + content))
        if changed and self._values is not None:
            self._write(self._values, changed)

    def _write(self, path: Path, changed: Iterable[tuple[int, bytes]]) -> None:
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                os.pwrite(descriptor, _MAGIC, 0)
                for slot, record in changed:
                    os.pwrite(descriptor, record, _SLOT * (slot + 1))
            finally:
                os.close(descriptor)
        except OSError as error:
            self._writing.begin(f"repeated values may be stored again after a restart: {error}")
        else:
            self._writing.end()
