"""A leaf's agent as a process that a test can kill: `python -m tests.harness.leaf_process CONFIG`.

CONFIG is JSON: domain, listen, seed, system_seed, state_dir; if wanted max_bytes and discard of the class.
Each line on standard input is a request, a key and a text; each line on standard output says what became of
one: `stored KEY` or `refused KEY`. The first line is `ready`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from agent.config import Config, Nats, Publish, Seconds, Size, StreamClass
from agent.leaf.intake import RefusedError, UnknownOutcomeError
from tests.harness.agents import Agent, chunk


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
        publish=Publish(linger=Seconds(0.005), batch_readings=10),
    )


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
            await one.submit(chunk(text, key=key))
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
