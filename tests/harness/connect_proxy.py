"""A small HTTP proxy that knows CONNECT, as sites have one before their hub."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class ConnectProxy:
    """`asked` has the targets it was asked for; `login` is the user and password that it wants."""

    port: int = 0
    login: str = ""
    status: str = "200 Connection established"
    asked: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection: a tunnel, or a refusal."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            target = head.split()[1]
            self.asked.append(target)
            wanted = base64.b64encode(self.login.encode()).decode()
            if self.login and f"Basic {wanted}" not in head:
                writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            elif not self.status.startswith("200"):
                writer.write(f"HTTP/1.1 {self.status}\r\n\r\n".encode())
            else:
                host, _, port = target.rpartition(":")
                there, back = await asyncio.open_connection(host.strip("[]"), int(port))
                writer.write(f"HTTP/1.1 {self.status}\r\n\r\n".encode())
                await asyncio.gather(_copy(reader, back), _copy(there, writer))
        except (OSError, EOFError):
            pass
        finally:
            writer.close()


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(65_536):
            sink.write(data)
            await sink.drain()
    finally:
        sink.close()


@asynccontextmanager
async def connect_proxy(login: str = "", status: str = "") -> AsyncIterator[ConnectProxy]:
    proxy = ConnectProxy(login=login)
    proxy.status = status or proxy.status
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
