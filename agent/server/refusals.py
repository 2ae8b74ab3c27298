"""Counts what the server refuses MQTT devices, which it tells its log alone
(`findings/nats-mqtt-acknowledges-a-forbidden-publish.sh`). This module may go once the server has an event.

The lines are those of `server/client.go` and `server/mqtt.go`. The server quotes client ids and subjects, so
no device can forge a line.
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
"""Refusals that are kept with their words."""
_AT_ONCE: Final = 2**20
"""Bytes of a log that are read at a time; nothing else runs meanwhile for some ms."""
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
    """One line of the log; `what` is the topic of `publish` and `subscribe`."""

    at: str
    address: str
    client: str
    reason: str
    what: str


def refusal_of(line: bytes) -> Refusal | None:
    """What a line of the log says of a device that was refused, None for another line."""
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
    """The topic that nats-server made a subject of: `/` is written as a dot, a dot as `//`."""
    return "/".join(level.replace("\0", ".") for level in subject.replace("//", "\0").split("."))


class Refusals(Struct):
    """What was read so far: counts since `since`, and up to where which file was read."""

    since: str
    inode: int = 0
    offset: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    latest: list[Refusal] = field(default_factory=list)

    def add(self, refusal: Refusal) -> None:
        self.counts[refusal.reason] = self.counts.get(refusal.reason, 0) + 1
        self.latest = [*self.latest[1 - LATEST :], refusal]

    def row(self) -> dict[str, Any]:
        """What `/status` shows."""
        return {
            "since": self.since,
            "refused": self.counts,
            "latest": [structs.asdict(each) for each in self.latest],
        }


class RefusalLog:
    """Reads the log of a server, which keeps older files beside it, and remembers in a file of its own how
    far: what is refused while no agent runs is counted by the next."""

    def __init__(self, log: Path, memory: Path) -> None:
        self._log, self._memory = log, memory
        self.seen = Refusals(datetime.now(UTC).isoformat(timespec="seconds"))

    def load(self) -> None:
        """Take up what an earlier agent read. A file that can't be used is as good as none."""
        with suppress(OSError, msgspec.MsgspecError):
            self.seen = msgspec.json.decode(self._memory.read_bytes(), type=Refusals)

    def read(self) -> list[Refusal]:
        """Read what has come. Raises `OSError`."""
        found = []
        for path in self._files():
            for line in self._lines(path):
                if (refusal := refusal_of(line)) is not None:
                    self.seen.add(refusal)
                    found.append(refusal)
        return found

    def save(self) -> None:
        """Remember how far the log was read, and what was found up to there. Raises `OSError`."""
        self._memory.parent.mkdir(mode=0o700, exist_ok=True)
        write_private(self._memory, msgspec.json.encode(self.seen))

    def _files(self) -> list[Path]:
        """The file that was read last, and those that followed it."""
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
