"""A leaf's agent as a process that a test can kill: `python -m tests.harness.leaf_process CONFIG`.

CONFIG is JSON: domain, listen, seed, system_seed, state_dir; if wanted max_bytes and discard of the class,
and the window in seconds to which readings `m` are aggregated. Each line on standard input is a request: a
key, and a text or a JSON array of readings without spaces. Each line on standard output says what became of
one: `stored KEY` or `refused KEY`. The first line is `ready`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from agent.config import Config, Nats, Publish, Rule, Seconds, Size, StreamClass
from agent.contract import make_request, request_scope
from agent.leaf.intake import Chunk, RefusedError, UnknownOutcomeError
from tests.harness.agents import Agent, chunk
from tests.harness.wait import WAIT_SECONDS


class LeafProcess:
    """A leaf's agent in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def launch(cls, config: Config, **stream: object) -> LeafProcess:
        """One with this `max_bytes` and `discard` of its class, which may not take requests yet."""
        given = {
            **stream,
            "domain": config.domain,
            "listen": config.nats.listen,
            "seed": str(config.nats.seed_file),
            "system_seed": str(config.nats.system_seed_file),
            "state_dir": str(config.state_dir),
        }
        return cls(
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.harness.leaf_process", json.dumps(given)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
        )

    @classmethod
    async def start(cls, config: Config, **stream: object) -> LeafProcess:
        """The same, once it takes requests."""
        process = await cls.launch(config, **stream)
        await process.says("ready")
        return process

    def ask(self, numbers: range) -> None:
        """Send requests with the keys `k<number>`."""
        assert self._process.stdin is not None
        for number in numbers:
            self._process.stdin.write(f"k{number} text-{number}\n".encode())

    def send(self, key: str, readings: list[dict[str, object]]) -> None:
        """Send a request of these readings."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{key} {json.dumps(readings, separators=(',', ':'))}\n".encode())

    async def said(self) -> str | None:
        """The next line, None once it has ended."""
        assert self._process.stdout is not None
        return (await self._process.stdout.readline()).decode().strip() or None

    def kill_now(self) -> None:
        """Send SIGKILL, from whatever thread."""
        self._process.kill()

    async def says(self, word: str, times: int = 1) -> None:
        """Return when it has said a word so often."""
        assert self._process.stdout is not None
        async with asyncio.timeout(WAIT_SECONDS):
            while times:
                line = await self._process.stdout.readline()
                assert line, "the process has ended"
                times -= line.decode().split()[0] == word

    async def kill(self) -> None:
        """End it by SIGKILL."""
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


def _config(text: str) -> Config:
    given = json.loads(text)
    return Config(
        domain=given["domain"],
        state_dir=Path(given["state_dir"]),
        nats=Nats(
            server="external",
            listen=given["listen"],
            seed_file=Path(given["seed"]),
            system_seed_file=Path(given["system_seed"]),
        ),
        class_=[
            StreamClass(max_bytes=Size(given.get("max_bytes", 2**28)), discard=given.get("discard", "new"))
        ],
        publish=Publish(batch_readings=10),
        rule=[
            Rule(
                metric="m",
                aggregate=["mean", "min", "max", "last", "count"],
                window=Seconds(window),
                late=Seconds(0.2),
            )
            for window in filter(None, [given.get("window")])
        ],
    )


def _request(key: str, text: str) -> Chunk:
    if not text.startswith("["):
        return chunk(text, key=key)
    rows = [json.dumps(row).encode() + b"\n" for row in json.loads(text)]
    return Chunk(b"".join(rows), len(rows), make_request(key, request_scope("http"), text.encode()))


async def _serve(config: Config) -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    one = Agent(config)
    await one.ready()
    print("ready", flush=True)

    async def store(key: str, text: str) -> None:
        try:
            await one.submit(_request(key, text))
        except (RefusedError, UnknownOutcomeError):
            print("refused", key, flush=True)
        else:
            print("stored", key, flush=True)

    async with asyncio.TaskGroup() as group:
        while line := await reader.readline():
            group.create_task(store(*line.decode().split()))
    await one.stop()


if __name__ == "__main__":
    asyncio.run(_serve(_config(sys.argv[1])))
