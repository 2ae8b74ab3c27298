"""A small client of nats-server, for fleets of thousands in one process: it speaks the protocol of clients or
that of leaf nodes, as many real programs would, each over a connection and with a key or password of its own.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

import nkeys

_CRLF: Final = b"\r\n"
_WITH_PAYLOAD: Final = (b"MSG ", b"HMSG", b"LMSG")
_SECONDS: Final = 60.0

Receive = Callable[[str, str, bytes], None]
"""Called with the subject, the reply subject ("" without one) and the payload without its headers."""


@dataclass(frozen=True, slots=True)
class LinkKey:
    """A key and the name under which its server links."""

    seed: str
    domain: str
    server: str

    def hello(self, info: dict[str, Any]) -> dict[str, Any]:
        """What CONNECT shows, with the nonce of this INFO signed."""
        pair = nkeys.from_seed(self.seed.encode())
        return {
            "name": self.server,
            "server_id": self.server,
            "version": info["version"],
            "headers": True,
            "protocol": 1,
            "domain": self.domain,
            "nkey": bytes(pair.public_key).decode(),
            "sig": base64.urlsafe_b64encode(pair.sign(info["nonce"].encode())).rstrip(b"=").decode(),
        }


class Wire(asyncio.Protocol):
    """One connection. With a `key` it is a link of leaf nodes, with `login` (user and password) a client."""

    def __init__(
        self, receive: Receive, key: LinkKey | None = None, login: tuple[str, str] | None = None
    ) -> None:
        self._receive, self._key, self._login = receive, key, login
        self._held = b""
        self._transport: asyncio.Transport | None = None
        self._greeted = False
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the server has taken the connection in."""
        self.open = False
        self.refused = ""
        """The newest error that the server named."""
        self.interest: Callable[[str, bool], None] | None = None
        """Takes in what the hub wants to hear over a link, or no more."""

    @classmethod
    async def connect(cls, port: int, wire: Wire) -> None:
        """Connect a wire to a port of this machine. Raises `OSError` or `TimeoutError`."""
        await asyncio.get_running_loop().create_connection(lambda: wire, "127.0.0.1", port)
        async with asyncio.timeout(_SECONDS):
            await wire.ready

    def subscribe(self, subject: str) -> None:
        line = f"LS+ {subject}\r\n" if self._key else f"SUB {subject} {abs(hash(subject)) % 10**9}\r\n"
        self._write(line.encode())

    def publish(self, subject: str, payload: bytes, reply: str = "", headers: bytes = b"") -> None:
        """Send a message; `headers` are those of NATS, with their first line and the empty one at the end."""
        verb = ("HMSG" if headers else "LMSG") if self._key else ("HPUB" if headers else "PUB")
        sizes = f"{len(headers)} {len(headers) + len(payload)}" if headers else str(len(payload))
        head = " ".join(part for part in (verb, subject, reply, sizes) if part)
        self._write(b"".join((head.encode(), _CRLF, headers, payload, _CRLF)))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self.open = cast(asyncio.Transport, transport), True

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        if not self.ready.done():
            self.ready.set_exception(ConnectionError(self.refused or str(exc or "closed")))

    def data_received(self, data: bytes) -> None:
        held, at = self._held + data if self._held else data, 0
        while (end := held.find(_CRLF, at)) >= 0:
            line, after = held[at:end], end + 2
            if line[:4] in _WITH_PAYLOAD:
                words = line.split()
                size = int(words[-1])
                if len(held) < after + size + 2:
                    break
                self._message(words, held[after : after + size])
                after += size + 2
            else:
                self._control(line)
            at = after
        self._held = held[at:]

    def _message(self, words: list[bytes], body: bytes) -> None:
        # MSG subject sid [reply] size; LMSG subject [reply] size; HMSG has one size more.
        sizes = 2 if words[0] == b"HMSG" else 1
        if sizes == 2:
            body = body[int(words[-2]) :]
        middle = words[2 if self._key else 3 : -sizes]
        reply = middle[-1].decode() if middle else ""
        self._receive(words[1].decode(), reply, body)

    def _control(self, line: bytes) -> None:
        if line.startswith(b"PING"):
            self._write(b"PONG\r\n")
        elif line.startswith(b"PONG"):
            if not self.ready.done():
                self.ready.set_result(None)
        elif line.startswith(b"INFO") and not self._greeted:
            self._greeted = True
            self._write(
                b"CONNECT " + json.dumps(self._hello(json.loads(line[5:]))).encode() + b"\r\nPING\r\n"
            )
        elif line.startswith((b"LS+", b"LS-")) and self.interest is not None:
            self.interest(line.split()[1].decode(), line[2:3] == b"+")
        elif line.startswith(b"-ERR"):
            self.refused = line.decode(errors="replace")

    def _hello(self, info: dict[str, Any]) -> dict[str, Any]:
        if self._key is not None:
            return self._key.hello(info)
        user, password = self._login or ("", "")
        said = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "protocol": 1}
        return said | {"lang": "bench", "version": "1", "user": user, "pass": password}

    def _write(self, data: bytes) -> None:
        if self._transport is not None and self.open:
            self._transport.write(data)
