"""The hub of the ten thousand leaves: a `petiole run` with its embedded server and a [[leaf]] table each."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import nats
import nkeys
import psutil
from nats.aio.client import Client

from agent.base.machine import machine_id
from agent.contract import HOME, aggregate, inbox_prefix, server_name
from agent.demo.loopback import free_port
from agent.jetstream import JetStream, JetStreamError
from bench.agents import Running
from bench.fleet_wire import LinkKey

CELL_LEAVES: Final = int(os.environ.get("CELL_LEAVES", "0"))
"""Of a cell; 0: all are in the first."""
SOURCES: Final = CELL_LEAVES or 1_000
"""Of an aggregate."""
WAIT_SECONDS: Final = 300.0
LOOK_SECONDS: Final = 0.25


@dataclass(slots=True)
class Hub(Running):
    directory: Path
    port: int
    links: int
    admin: int

    def start(self) -> float:
        """Start the agent; returns when, in seconds since 1970."""
        began = time.time()
        with (self.directory / "agent.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.fleet_agent", self._loop, "run", "-c", self._toml],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=Path(__file__).parent.parent,
            )
        return began

    async def ready(self) -> float:
        """When it answered that it is ready, in seconds since 1970. Raises `RuntimeError`."""
        deadline = time.monotonic() + WAIT_SECONDS
        while await asyncio.to_thread(self.page, "/readyz") is None:
            if time.monotonic() > deadline or self._process is None or self._process.poll() is not None:
                raise RuntimeError(f"the hub's agent is not ready; see {self.directory / 'agent.log'}")
            await asyncio.sleep(0.1)
        return time.time()

    @property
    def server(self) -> psutil.Process:
        return psutil.Process(int((self.directory / "state" / "nats" / "nats-server.pid").read_text()))

    async def gauge(self, name: str) -> float:
        """A metric without labels, 0 where it is not there."""
        text = await asyncio.to_thread(self.page, "/metrics") or ""
        lines = (line for line in text.splitlines() if line.startswith(f"{name} "))
        return float(next(lines, "x 0").split()[1])

    def blocked(self, since: float) -> tuple[float, float]:
        """The longest time between two turns of the event loop since then, and the most that it ran itself
        between two, in seconds."""
        lines = self._loop.read_text().splitlines() if self._loop.exists() else []
        rows = [row for row in map(json.loads, lines) if row["at"] >= since]
        return max((row["longest"] for row in rows), default=0.0), max(
            (row["ran"] for row in rows), default=0.0
        )

    async def client(self, identity: str) -> Client:
        return await nats.connect(
            f"nats://127.0.0.1:{self.port}",
            nkeys_seed=str(self.directory / "state" / "keys" / f"{identity}.nk"),
            inbox_prefix=inbox_prefix("jobs" if identity == "jobs" else "registrar").encode(),
        )

    def end(self) -> None:
        with suppress(OSError, psutil.Error, ValueError):
            self.server.kill()
        self.kill()
        if keep := os.environ.get("KEEP"):
            for path in (self.directory / "agent.log", self._loop):
                shutil.copy(path, keep)

    @property
    def _toml(self) -> Path:
        return self.directory / "petiole.toml"

    @property
    def _loop(self) -> Path:
        return self.directory / "loop.jsonl"

    def page(self, path: str) -> str | None:
        """What the admin server answers, None without an answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}{path}", timeout=10) as answer:
                return str(answer.read().decode())
        except OSError:
            return None


MACHINE: Final = machine_id()


def make_key(number: int) -> tuple[LinkKey, str]:
    """The link's key of a leaf, and its public half."""
    seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
    domain = f"edge-{number}"
    public = bytes(nkeys.from_seed(seed).public_key).decode()
    return LinkKey(seed.decode(), domain, server_name(domain, MACHINE)), public


def cell_of_leaf(number: int) -> str:
    """The cell of a leaf, by its number."""
    return str(number // CELL_LEAVES) if CELL_LEAVES and number >= CELL_LEAVES else HOME


def aggregate_of(number: int) -> str:
    """The aggregate of a leaf, by its number."""
    return aggregate(0, cell_of_leaf(number)) if CELL_LEAVES else aggregate(number // SOURCES)


def make_hub(directory: Path, keys: list[LinkKey], public: list[str]) -> Hub:
    """A hub that knows the leaves of these keys; it does not run yet."""
    directory.mkdir()
    hub = Hub(directory, free_port(), free_port(), free_port())
    tables = "".join(
        f'[[leaf]]\ndomain = "{key.domain}"\nkey = "{text}"\nclasses = ["normal"]\n'
        f"cell = {cell_of_leaf(number) or 0}\n"
        for number, (key, text) in enumerate(zip(keys, public, strict=True))
    )
    (directory / "petiole.toml").write_text(f"""\
role = "hub"
domain = "hub"
state_dir = "{directory / "state"}"

[nats]
server = "embedded"
listen = "127.0.0.1:{hub.port}"
leaf_listen = "127.0.0.1:{hub.links}"

[registrar]
max_sources = {SOURCES}
max_bytes = "64MiB"

[admin]
listen = "127.0.0.1:{hub.admin}"

{tables}""")
    return hub


async def listens(port: int) -> None:
    """Return when something listens at a port of this machine."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            with suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return
            await asyncio.sleep(LOOK_SECONDS)


async def made(js: JetStream, stream: str) -> None:
    """Return when the registrar has made a stream."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            with suppress(JetStreamError):
                await js.stream_info(stream)
                return
            await asyncio.sleep(LOOK_SECONDS)
