"""What is counted beside a benchmark: by a TCP relay in the hub's place what passes, both ways, for each
connection (the bytes of the leaf link as the servers write them, compressed where they compress, without
TCP's own); and what reaches a block device, by the kernel's counters (Documentation/block/stat.rst), on a
device of its own where this process may make one.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent.demo.loopback import free_port

_LINE_END: Final = b"\r\n"
_WITH_PAYLOAD: Final = (b"LMSG", b"HMSG")
_HEARTBEAT: Final = b"NATS/1.0 100 Idle Heartbeat"
_CAUSES: Final = (
    (re.compile(r"petiole\.deliver\."), "readings"),
    (re.compile(r"petiole\.command\."), "commands"),
    (re.compile(r"petiole\.v1\.announce\."), "announcements"),
    (re.compile(r"petiole\.v1\."), "other questions to the registrar"),
    (re.compile(r"_INBOX_"), "answers of the registrar"),
    (re.compile(r"\$JS\.FC\."), "acknowledgements of readings"),
    (re.compile(r"\$JS[.C]|_R_\."), "JetStream's requests and answers"),
)
OTHER: Final = "other"


class LeafProtocol:
    """Adds the bytes of one direction of a link to `causes`."""

    def __init__(self, causes: Counter[str]) -> None:
        self._causes = causes
        self._held = bytearray()

    def feed(self, data: bytes) -> None:
        self._held += data
        while (size := self._first_size()) is not None:
            self._count(bytes(self._held[:size]))
            del self._held[:size]

    def _first_size(self) -> int | None:
        """The size of the first message that is held, None while it is not complete."""
        end = self._held.find(_LINE_END)
        if end < 0:
            return None
        line = bytes(self._held[:end])
        size = end + len(_LINE_END)
        if line.startswith(_WITH_PAYLOAD):
            size += int(line.rsplit(b" ", 1)[1]) + len(_LINE_END)
        return size if len(self._held) >= size else None

    def _count(self, message: bytes) -> None:
        line, _, payload = message.partition(_LINE_END)
        self._causes[_cause(line, payload)] += len(message)


def _cause(line: bytes, payload: bytes) -> str:
    verb, _, rest = line.partition(b" ")
    if not line.startswith(_WITH_PAYLOAD):
        return {
            b"PING": "pings",
            b"PONG": "pings",
            b"LS+": "interest (LS+, LS-)",
            b"LS-": "interest (LS+, LS-)",
            b"INFO": "greeting",
            b"CONNECT": "greeting",
        }.get(verb, OTHER)
    subject = rest.split(b" ", 1)[0].decode(errors="replace")
    cause = next((cause for pattern, cause in _CAUSES if pattern.match(subject)), OTHER)
    return f"heartbeats of {cause}" if payload.startswith(_HEARTBEAT) else cause


class Meter:
    """Leaves dial `host`:`port`, the hub listens at `hub`. With `causes` it tells what passes by its cause,
    which needs links that are not compressed."""

    host = "127.0.0.1"

    def __init__(self, *, causes: bool = False) -> None:
        self.port = free_port()
        self._hub_port = free_port()
        self._bytes: dict[int, int] = {}
        self._causes: dict[int, Counter[str]] | None = {} if causes else None

    @property
    def hub(self) -> str:
        """Where the hub has to listen."""
        return f"{self.host}:{self._hub_port}"

    def passed(self, port: int) -> int:
        """The bytes of the connection that the hub sees come from a port."""
        return self._bytes[port]

    def causes(self, port: int) -> Counter[str]:
        """The bytes of such a connection by cause, both ways."""
        assert self._causes is not None, "the meter was not asked for causes"
        return self._causes[port].copy()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay one connection until either end closes it."""
        try:
            far_reader, far_writer = await asyncio.open_connection(self.host, self._hub_port)
        except OSError:
            writer.close()
            return
        port = far_writer.get_extra_info("sockname")[1]
        self._bytes[port] = 0
        with suppress(OSError):
            await asyncio.gather(self._copy(reader, far_writer, port), self._copy(far_reader, writer, port))
        writer.close()
        far_writer.close()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        protocol = None if self._causes is None else LeafProtocol(self._causes.setdefault(port, Counter()))
        while data := await reader.read(65536):
            self._bytes[port] += len(data)
            if protocol is not None:
                protocol.feed(data)
            writer.write(data)
            await writer.drain()
        writer.close()


@asynccontextmanager
async def metered(*, causes: bool = False) -> AsyncIterator[Meter]:
    """A meter that relays as long as the context lasts."""
    meter = Meter(causes=causes)
    server = await asyncio.start_server(meter.serve, meter.host, meter.port)
    try:
        yield meter
    finally:
        server.close()


_SECTOR: Final = 512
_WRITTEN, _FLUSHES = 6, 15
"""Where the counters stand."""
_IMAGE_BYTES: Final = 8 * 2**30


@dataclass(frozen=True, slots=True)
class Written:
    """Since the machine started."""

    bytes: int
    flushes: int

    def since(self, before: Written) -> Written:
        return Written(self.bytes - before.bytes, self.flushes - before.flushes)


@dataclass(frozen=True, slots=True)
class Device:
    """A directory, and the device that holds it."""

    directory: Path
    name: str
    alone: bool
    """Nothing else writes to it."""

    def written(self) -> Written:
        """Until now."""
        fields = Path(f"/sys/class/block/{self.name}/stat").read_text().split()
        return Written(int(fields[_WRITTEN]) * _SECTOR, int(fields[_FLUSHES]))


@contextmanager
def device() -> Iterator[Device]:
    """An empty ext4 on a loop device that ends with the context; without the rights for that a temporary
    directory on the device that holds it, which others write to as well. Raises `RuntimeError` where it is on
    none."""
    with tempfile.TemporaryDirectory(prefix="petiole-bench-") as name:
        image, mounted = Path(name) / "image", Path(name) / "mounted"
        mounted.mkdir()
        if not _mount(image, mounted):
            yield Device(mounted, _holding(mounted), alone=False)
            return
        try:
            yield Device(mounted, _holding(mounted), alone=True)
        finally:
            subprocess.run(["umount", "--lazy", str(mounted)], check=True)


def _mount(image: Path, mounted: Path) -> bool:
    with image.open("wb") as file:
        file.truncate(_IMAGE_BYTES)
    commands = (["mkfs.ext4", "-q", "-F", str(image)], ["mount", "-o", "loop", str(image), str(mounted)])
    with suppress(OSError, subprocess.CalledProcessError):
        for command in commands:
            subprocess.run(command, check=True, capture_output=True)
        return True
    return False


def _holding(directory: Path) -> str:
    number = directory.stat().st_dev
    entry = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    if not entry.exists():
        raise RuntimeError(f"{directory} is on no block device; set TMPDIR to a directory that is")
    return entry.resolve().name
