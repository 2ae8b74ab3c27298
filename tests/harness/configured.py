"""One server from a configuration written by hand, in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

from nats.aio.client import Client

from agent.base.nats_server_version import find_binary
from agent.server.child import reap, spawn
from agent.server.probe import Watched, greeting
from tests.harness.wait import until

_CLOSE_SECONDS = 2.0


class ConfiguredServer:
    """A server that runs in `directory` with the configuration `text`, which listens on `port`."""

    def __init__(self, directory: Path, name: str, port: int, text: str) -> None:
        self.directory, self.name, self.port = directory, name, port
        self._configuration = directory / "server.conf"
        directory.mkdir(parents=True, exist_ok=True)
        self._configuration.write_text(text)
        self._process: Watched | None = None

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"nats://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """What the server has said since it was started."""
        return (self.directory / "out").read_text()

    async def start(self) -> None:
        """Run the server; again after `kill`, with the same store."""
        command = [str(find_binary()), "-c", str(self._configuration)]
        self._process = Watched(spawn(command, self.directory, self.directory / "out"))

        async def answers() -> bool:
            assert self._process is not None
            assert not self._process.ended.is_set(), f"{self.name} has ended: {self.log}"
            return await greeting(("127.0.0.1", self.port)) is not None

        await until(answers, f"{self.name} answers")

    async def reload(self) -> None:
        """Have the server read its files again; returns when it has."""
        assert self._process is not None
        seen = len(self.log)
        self._process.signal(signal.SIGHUP)

        def reloaded() -> bool:
            said = self.log[seen:]
            assert "Failed to reload" not in said, said
            return "Reloaded server configuration" in said

        await until(reloaded, f"{self.name} has reloaded")

    async def kill(self) -> None:
        """End the server by SIGKILL."""
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGKILL)
            await self._process.ended.wait()
            reap(self._process.pid)
            self._process = None


async def closed(client: Client) -> None:
    """End a client, whatever state its server is in."""
    # To close waits for a server that may be gone by now, and nats-py 2.16 loses a cancellation of its
    # reconnect now and then, after which it never ends.
    client.options["max_reconnect_attempts"] = 1
    with contextlib.suppress(TimeoutError, asyncio.CancelledError):
        async with asyncio.timeout(_CLOSE_SECONDS):
            await client.close()
