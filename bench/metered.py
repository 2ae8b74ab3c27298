"""A TCP relay in the hub's place that counts what passes, both ways, for each connection: the bytes of the
leaf link as the servers write them, compressed where they compress, without TCP's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from agent.demo.ports import free_port


class Meter:
    """Leaves dial `host`:`port`, the hub listens at `hub`."""

    host = "127.0.0.1"

    def __init__(self) -> None:
        self.port = free_port()
        self._hub_port = free_port()
        self._bytes: dict[int, int] = {}

    @property
    def hub(self) -> str:
        """Where the hub has to listen."""
        return f"{self.host}:{self._hub_port}"

    def passed(self, port: int) -> int:
        """The bytes of the connection that the hub sees come from a port."""
        return self._bytes[port]

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
        while data := await reader.read(65536):
            self._bytes[port] += len(data)
            writer.write(data)
            await writer.drain()
        writer.close()


@asynccontextmanager
async def metered() -> AsyncIterator[Meter]:
    """A meter that relays as long as the context lasts."""
    meter = Meter()
    server = await asyncio.start_server(meter.serve, meter.host, meter.port)
    try:
        yield meter
    finally:
        server.close()
