"""A leaf in the wrong hands: it speaks the leafnode protocol itself, so that no rule that a nats-server would
keep on its own side holds it back, only the hub's."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import nkeys

_SECONDS = 60.0


class RawLink:
    """One link. `heard` is the payload of whatever the hub has sent, `refused` what it said against
    something, `over` whether it has hung up."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heard: set[bytes] = set()
        self.refused: list[str] = []
        self.over = False
        self._reader, self._writer = reader, writer
        self._pongs: asyncio.Queue[None] = asyncio.Queue()

    async def join(self, hello: dict[str, object]) -> None:
        """Show the credentials and wait for the hub's answer."""
        self._writer.write(b"CONNECT " + json.dumps(hello).encode() + b"\r\n")
        await self.flush()

    def publish(self, subject: str, payload: bytes) -> None:
        """Send a message up."""
        self._writer.write(f"LMSG {subject} {len(payload)}\r\n".encode() + payload + b"\r\n")

    def subscribe(self, subjects: Iterable[str]) -> None:
        """Say that somebody here listens to these."""
        for subject in subjects:
            self._writer.write(f"LS+ {subject}\r\n".encode())

    async def flush(self) -> None:
        """Return when the hub has seen all that was sent, or has hung up."""
        self._writer.write(b"PING\r\n")
        async with asyncio.timeout(_SECONDS):
            await self._pongs.get()

    async def read(self) -> None:
        """Take in what the hub sends, until it hangs up."""
        try:
            while line := await self._reader.readline():
                if line.startswith(b"PING"):
                    self._writer.write(b"PONG\r\n")
                elif line.startswith(b"PONG"):
                    self._pongs.put_nowait(None)
                elif line.startswith(b"-ERR"):
                    self.refused.append(line.decode().strip())
                elif line.startswith((b"LMSG", b"HMSG")):
                    payload = await self._reader.readexactly(int(line.split()[-1]) + 2)
                    self.heard.add(payload[:-2].rpartition(b"\r\n\r\n")[2])
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        self.over = True
        self._pongs.put_nowait(None)


def key_shown(seed: Path, nonce: str) -> dict[str, str]:
    """What a CONNECT shows of a key: its public half, and the server's nonce as it signs it."""
    pair = nkeys.from_seed(seed.read_bytes().strip())
    return {
        "nkey": bytes(pair.public_key).decode(),
        "sig": base64.urlsafe_b64encode(pair.sign(nonce.encode())).rstrip(b"=").decode(),
    }


@asynccontextmanager
async def raw_link(port: int, domain: str, seed: Path) -> AsyncIterator[RawLink]:
    """A link of `domain` with this seed; it is closed with the context."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    info = json.loads((await reader.readline()).removeprefix(b"INFO "))
    link = RawLink(reader, writer)
    reading = asyncio.create_task(link.read())
    try:
        await link.join(
            {
                "name": f"{domain}-raw",
                "version": info["version"],
                "headers": True,
                "protocol": 1,
                "domain": domain,
                **key_shown(seed, info["nonce"]),
            }
        )
        yield link
    finally:
        writer.close()
        reading.cancel()
        await asyncio.wait([reading])
