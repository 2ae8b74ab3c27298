"""What stands between a leaf and the hub: a relay in this process, driven from any thread, or the line of
`tools`. Every fault of it is noted. A relay may hold every byte back for a time, each way: a long way, as
programs see it. TCP itself sees two short ones, so how it behaves over a long way is not shown."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from agent.demo.loopback import LoopbackProxy
from agent.leaf.link.status import LinkState
from tests.faults.tools.line import Line, Quality
from tests.faults.world.injected_faults import InjectedFaults
from tests.faults.world.machine import Machine
from tests.harness.servers import LinkProxy

_UNDER_WAY = 4096
"""Pieces that may be under way before the relay reads no more."""


class LateProxy(LoopbackProxy):
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


class TcpProxy:
    """A `LateProxy` that runs in a thread of its own."""

    def __init__(self, target: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._proxy = LateProxy(target)
        asyncio.run_coroutine_threadsafe(self._proxy.start(), self._loop).result()
        self.host, self.port = self._proxy.host, self._proxy.port

    def cut(self) -> None:
        """Break every connection with a reset and refuse new ones."""
        self._do(self._proxy.cut)

    def stall(self) -> None:
        """Let nothing pass and close nothing."""
        self._do(self._proxy.stall)

    def restore(self) -> None:
        """Let everything through again."""
        self._do(self._proxy.restore)

    def delay(self, seconds: float) -> None:
        """Hold every byte back for so long, each way."""
        self._proxy.delay = seconds

    @property
    def held(self) -> int:
        """Bytes that were held back."""
        return self._proxy.held

    @property
    def carried(self) -> int:
        """Connections that were let through, each way one."""
        return self._proxy.carried

    def close(self) -> None:
        """End it."""
        asyncio.run_coroutine_threadsafe(self._proxy.stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, what: Callable[[], None]) -> None:
        done = threading.Event()

        def act() -> None:
            what()
            done.set()

        self._loop.call_soon_threadsafe(act)
        assert done.wait(10), "the relay hangs"


@contextmanager
def tcp_proxy(target: int) -> Iterator[TcpProxy]:
    """A proxy before a port of the loopback, as long as the context lasts."""
    one = TcpProxy(target)
    try:
        yield one
    finally:
        one.close()


class Link:
    """The link of some leaves, which share one proxy. A cut and a stall are seen when a leaf tells that its
    link is down; what only slows it down leaves no other trace than what the tool itself counts."""

    def __init__(self, proxy: LinkProxy, injected: InjectedFaults, leaves: list[Machine]) -> None:
        self.proxy, self._injected, self.leaves = proxy, injected, leaves

    @property
    def line(self) -> Line:
        """The proxy, where it is one that knows packets."""
        assert isinstance(self.proxy, Line)
        return self.proxy

    def cut(self) -> None:
        """Break every connection with a reset and refuse new ones."""
        self._injected.add("the link is cut", self.down)
        self.proxy.cut()

    def stall(self) -> None:
        """Let nothing pass and close nothing."""
        self._injected.add("the link is half-open", self.down)
        self.proxy.stall()

    def lose(self, per_cent: int) -> None:
        """Lose so many of a hundred packets, each way."""
        self.becomes(Quality(loss=per_cent), f"{per_cent} % of all packets are lost", "lost")

    def swallow(self, bytes_: int) -> None:
        """Lose every packet that is larger."""
        self.becomes(Quality(largest=bytes_), f"packets of more than {bytes_} bytes are lost", "lost")

    def becomes(self, quality: Quality, what: str, trace: str) -> None:
        """Make the line as bad as this; `trace` is the count of `Passed` that must grow, for the packets that
        felt it."""

        def felt() -> int:
            return sum(int(getattr(way, trace)) for way in self.line.passed())

        before = felt()

        def seen(_since: float) -> str | None:
            return f"{trace}: {count} packets" if (count := felt() - before) else None

        self._injected.add(what, seen)
        self.line.set(quality)

    def restore(self) -> None:
        """Let everything through again."""
        self.proxy.restore()
        self._injected.repaired("the link is restored")

    def down(self, since: float) -> str | None:
        """Which leaf told first that its link is down."""
        for leaf in self.leaves:
            for at, state in leaf.link_told(since):
                if state == LinkState.DOWN:
                    return f"{leaf.member.domain} reported that its link is down after {at - since:.2f} s"
        return None
