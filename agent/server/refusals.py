"""Counts refused MQTT devices from the server's log
(`findings/nats-mqtt-acknowledges-a-forbidden-publish.sh`).

Lines are of `server/client.go` and `server/mqtt.go`, with quoted ids, so devices can't forge them. Remove
when the server has an event.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct, field, structs

from agent.base.files import write_private

LATEST: Final = 5
"""Refusals kept with text."""
_AT_ONCE: Final = 2**20
"""Log bytes read at once, some ms."""
_SHOWN: Final = 200
_LINE: Final = re.compile(
    rb"(?:\[\d+\] )?(?:(\d{4}/\d\d/\d\d \d\d:\d\d:\d\d)\.\d+ )?\[ERR\] "
    rb'(\S+) - mid:\d+ - ("(?:[^"\\]|\\.)*+") - (.*)'
)
_REASONS: Final = (
    (re.compile(rb'Publish Violation - Subject "(.*)"'), "publish"),
    (re.compile(rb'Subscription Violation - Subject "(.*)"(?:,.*)?'), "subscribe"),
    (re.compile(rb"authentication error(?: - )?(.*)"), "password"),
    (re.compile(rb"invalid character in client ID (.*)"), "client_id"),
    (re.compile(rb"unacceptable protocol version of (.*)"), "protocol"),
)
REASONS: Final = tuple(reason for _, reason in _REASONS)


class Refusal(Struct, frozen=True):
    """A log line; `what` is the topic."""

    at: str
    address: str
    client: str
    reason: str
    what: str


def refusal_of(line: bytes) -> Refusal | None:
    """Parse a refusal, None for other lines."""
    match = _LINE.match(line)
    if match is None:
        return None
    for pattern, reason in _REASONS:
        if (found := pattern.fullmatch(match[4])) is not None:
            text = found[1].decode(errors="replace")
            if reason in ("publish", "subscribe"):
                text = _topic(text)
            at = datetime.now(UTC)  # for a log without times
            if match[1] is not None:
                at = datetime.strptime(match[1].decode(), "%Y/%m/%d %H:%M:%S").astimezone(UTC)
            client = match[3][1:-1].decode(errors="replace")
            return Refusal(
                at.isoformat(timespec="seconds"), match[2].decode(), client[:_SHOWN], reason, text[:_SHOWN]
            )
    return None


def _topic(subject: str) -> str:
    """Return a subject's topic: a dot is `/`, `//` a dot."""
    return "/".join(level.replace("\0", ".") for level in subject.replace("//", "\0").split("."))


class Refusals(Struct):
    """Counts since `since`, and the read position."""

    since: str
    inode: int = 0
    offset: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    latest: list[Refusal] = field(default_factory=list)

    def add(self, refusal: Refusal) -> None:
        self.counts[refusal.reason] = self.counts.get(refusal.reason, 0) + 1
        self.latest = [*self.latest[1 - LATEST :], refusal]

    def row(self) -> dict[str, Any]:
        return {
            "since": self.since,
            "refused": self.counts,
            "latest": [structs.asdict(each) for each in self.latest],
        }


class RefusalLog:
    """Reads a server's rotated log, and remembers the position in a file."""

    def __init__(self, log: Path, memory: Path) -> None:
        self._log, self._memory = log, memory
        self.seen = Refusals(datetime.now(UTC).isoformat(timespec="seconds"))

    def load(self) -> None:
        """Load the position; an unusable file counts as empty."""
        with suppress(OSError, msgspec.MsgspecError):
            self.seen = msgspec.json.decode(self._memory.read_bytes(), type=Refusals)

    def read(self) -> list[Refusal]:
        """Read new lines. Raises `OSError`."""
        found = []
        for path in self._files():
            for line in self._lines(path):
                if (refusal := refusal_of(line)) is not None:
                    self.seen.add(refusal)
                    found.append(refusal)
        return found

    def save(self) -> None:
        """Save position and counts. Raises `OSError`."""
        self._memory.parent.mkdir(mode=0o700, exist_ok=True)
        write_private(self._memory, msgspec.json.encode(self.seen))

    def _files(self) -> list[Path]:
        try:
            newest = self._log.stat()
        except FileNotFoundError:
            return []
        if newest.st_ino == self.seen.inode:
            return [self._log]
        # The server names an older file by its time, so names are in the order of the files.
        older = sorted(self._log.parent.glob(f"{self._log.name}.*"))
        inodes = [path.stat().st_ino for path in older]
        first = inodes.index(self.seen.inode) if self.seen.inode in inodes else len(older)
        return [*older[first:], self._log]

    def _lines(self, path: Path) -> Iterator[bytes]:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_ino != self.seen.inode or status.st_size < self.seen.offset:
                self.seen.inode, self.seen.offset = status.st_ino, 0
            file.seek(self.seen.offset)
            while data := file.read(_AT_ONCE):
                end = data.rfind(b"\n") + 1
                if not end:
                    return
                yield from data[:end].splitlines()
                self.seen.offset += end
                file.seek(self.seen.offset)
