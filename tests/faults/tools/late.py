"""A relay that holds every byte back for a time, each way: a long way, as programs see it. TCP itself sees
two short ones, so how it behaves over a long way is not shown."""

from __future__ import annotations

import asyncio

from agent.demo.proxy import Proxy

_UNDER_WAY = 4096
"""Pieces that may be under way before the relay reads no more."""


class LateProxy(Proxy):
    """A `Proxy` with a `delay` in seconds, each way; `held` counts the bytes that were held back, `carried`
    the connections that were let through, each way one."""

    delay = 0.0
    held = 0
    carried = 0

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.carried += 1
        loop = asyncio.get_running_loop()
        way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_UNDER_WAY)

        async def arrive() -> None:
            while True:
                due, data = await way.get()
                await asyncio.sleep(due - loop.time())
                await self._flowing.wait()
                if not data:
                    return
                writer.write(data)
                await writer.drain()

        async def depart() -> None:
            data = b"begin"
            while data:
                data = await reader.read(65536)
                self.held += len(data) if self.delay else 0
                await way.put((loop.time() + self.delay, data))

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(arrive())
                group.create_task(depart())
        except* OSError:
            pass  # one end has hung up
        await self._flowing.wait()
        writer.transport.abort()
