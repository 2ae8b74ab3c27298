"""The `http` input over real sockets, before a core that keeps what it is given in memory."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import aiohttp
import uvloop

from agent.base.metrics import Metrics
from agent.cli.configuration import problems
from agent.demo.loopback import free_port
from agent.leaf.inputs.http import HttpOptions
from agent.leaf.inputs.http.input import HttpInput
from agent.leaf.inputs.shared import ConfiguredInput
from tests.harness.intakes import Core
from tests.harness.wait import until

NDJSON = {"Content-Type": "application/x-ndjson"}
JSON = {"Content-Type": "application/json"}
FULL = b'{"ts":1,"device":"d","metric":"m","value":1}\n'
"""A reading that says all, as a line."""


def request(
    body: bytes, *headers: str, first: str = "POST /v1/readings HTTP/1.1", host: str = "localhost"
) -> bytes:
    """The bytes of a request with these lines of headers."""
    lines = [first, *([f"Host: {host}"] if host else []), "Content-Type: application/x-ndjson", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class ServedInput:
    """A running input whose senders are answered, and its core."""

    def __init__(self, name: str, port: int) -> None:
        self.name, self.port = name, port
        self.core = Core(name)
        self.metrics = Metrics()
        self.stopping = asyncio.Event()

    def metric(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, {"input": self.name, **labels}) or 0.0

    @contextlib.asynccontextmanager
    async def running(self, made: ConfiguredInput[Any]) -> AsyncIterator[None]:
        """Meanwhile the input runs, which listens at the port."""
        assert problems([made]) == []
        task = asyncio.create_task(made.run(self.core, self.stopping))
        try:
            await until(lambda: task.done() or made.obstacles() != [])
            yield
        finally:
            self.core.open.set()
            self.stopping.set()
            await task


class Served(ServedInput):
    """An `http` input, and a client."""

    def __init__(self, port: int, session: aiohttp.ClientSession) -> None:
        super().__init__("http", port)
        self.url = f"http://127.0.0.1:{port}"
        self.session = session

    async def post(
        self,
        body: Any,
        headers: dict[str, str] | None = None,
        path: str = "/v1/readings",
        method: str = "POST",
    ) -> tuple[int, dict[str, Any], Any]:
        """Status, JSON body ({} when empty) and headers of one request."""
        async with self.session.request(
            method,
            self.url + path,
            data=io.BytesIO(body) if isinstance(body, bytes) else body,
            headers={**NDJSON, **(headers or {})},
        ) as answer:
            text = await answer.read()
            return answer.status, json.loads(text) if text else {}, answer.headers

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A connection of its own, closed at the end."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield reader, writer
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def raw(self, data: bytes) -> bytes:
        """All that comes back for some bytes, until the input closes."""
        async with self.connection() as (reader, writer), asyncio.timeout(30):
            writer.write(data)
            return await reader.read()


@contextlib.asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[Served]:
    async with aiohttp.ClientSession() as session, asyncio.timeout(60):
        served = Served(free_port(), session)
        made = HttpInput(HttpOptions(listen=f"127.0.0.1:{served.port}", **options), served.metrics)
        async with served.running(made):
            yield served


def on_uvloop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs a test in the agent's own loop, whose transports differ from those of the standard one."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        uvloop.run(test(*arguments, **named))

    return run
