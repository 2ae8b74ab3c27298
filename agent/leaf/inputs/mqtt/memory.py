"""Remembers between connections and starts the newest stored value of each topic, so that a retained message
is stored once, and the filters that the broker's session may still have.

The values are slots of 16 bytes in one file, each a digest of the topic and a digest of payload and names. A
slot is overwritten in place, so a busy topic costs the disk one page. Nothing is synced: a power cut may lose
the newest slots, and their retained values are then stored again with their tag.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple

from structlog.typing import FilteringBoundLogger

from agent.base.files import write_private
from agent.base.logs import LogEdge

MAX_TOPICS: Final = 65_536
"""Topics of which the value is remembered; beyond, the topic that was silent for longest is forgotten."""
_HALF: Final = 8
_SLOT: Final = 2 * _HALF
_MAGIC: Final = b"petiole-values1\n"
"""The first slot names the version of the file."""
_FREE: Final = bytes(_HALF)


class TopicValue(NamedTuple):
    """Digests of a topic, and of what it said together with the names that its filter gives."""

    topic: bytes
    content: bytes


def value_of(topic: str, payload: bytes, *names: str) -> TopicValue:
    digest = blake2b("\0".join(names).encode(errors="surrogatepass") + b"\0", digest_size=_HALF)
    digest.update(payload)
    name = topic.encode(errors="surrogatepass")
    return TopicValue(blake2b(name, digest_size=_HALF).digest(), digest.digest())


class BrokerMemory:
    """What one input remembers in the files `<name>.values` and `<name>.filters` of a directory; in memory
    only where there is none."""

    def __init__(self, directory: Path | None, name: str, log: FilteringBoundLogger) -> None:
        self._values = None if directory is None else directory / f"{name}.values"
        self._filters = None if directory is None else directory / f"{name}.filters"
        self._slots: dict[bytes, int] = {}
        self._contents: list[bytes] = []
        self._log = log
        self._writing = LogEdge(log, "values of topics are remembered again")

    def load(self) -> None:
        """Read the values. A file that can't be read is as good as none."""
        if self._values is None:
            return
        self._slots, self._contents = {}, []
        try:
            data = self._values.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            self._log.warning("values of topics not read", reason=str(error))
            return
        if not data.startswith(_MAGIC):
            self._log.warning("values of topics not read", reason=f"{self._values} has another format")
            with contextlib.suppress(OSError):
                self._values.unlink()
            return
        for at in range(_SLOT, min(len(data), _SLOT * (MAX_TOPICS + 1)) - _SLOT + 1, _SLOT):
            topic = data[at : at + _HALF]
            if topic != _FREE:  # a power cut may leave zeros
                self._slots[topic] = len(self._contents)
            self._contents.append(data[at + _HALF : at + _SLOT])

    def is_known(self, value: TopicValue) -> bool:
        """Whether this is the newest value of its topic that was stored."""
        slot = self._slots.get(value.topic)
        return slot is not None and self._contents[slot] == value.content

    def remember(self, values: Mapping[bytes, bytes]) -> None:
        """These are stored: the content of each topic."""
        changed = []
        for topic, content in values.items():
            slot = self._slots.pop(topic, None)
            if slot is None and len(self._contents) < MAX_TOPICS:
                slot = len(self._contents)
                self._contents.append(_FREE)
            elif slot is None:
                slot = self._slots.pop(next(iter(self._slots)))
            elif self._contents[slot] == content:
                self._slots[topic] = slot
                continue
            self._slots[topic] = slot
            self._contents[slot] = content
            changed.append((slot, topic + content))
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
            self._writing.begin(f"retained values may be stored again after a restart: {error}")
        else:
            self._writing.end()

    def earlier_filters(self) -> list[str]:
        """The filters that the session at the broker may have."""
        if self._filters is None:
            return []
        try:
            return self._filters.read_text().splitlines()
        except (OSError, UnicodeDecodeError):
            return []

    def note_filters(self, filters: Sequence[str]) -> None:
        """Remember the filters that the session at the broker may have from now on."""
        if self._filters is None or list(filters) == self.earlier_filters():
            return
        try:
            self._filters.parent.mkdir(mode=0o700, exist_ok=True)
            write_private(self._filters, "".join(f"{filter_}\n" for filter_ in filters).encode())
        except OSError as error:
            self._log.warning("filters not remembered", reason=str(error))
