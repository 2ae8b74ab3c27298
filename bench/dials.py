"""A hub of thousands of leaves whose server has started: all of them dial it at once. Links that close their
gate as `agent.leaf.link.gate` decides, beside links that dial on, as nats-server does by itself.

The hub's server is real. The leaves are played in this process (`bench.dialled_link`), on the same cores.
`LEAVES=10000 python -m bench dials` for another number than 4,000.
"""

from __future__ import annotations

import asyncio
import os
import resource
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
import uvloop

from agent.contract import server_name
from agent.demo.loopback import free_port
from agent.hub.registrar.fleet_state import spread_seconds
from agent.server.process import EmbeddedServer
from agent.server.values import HubConfig, LeafUser
from bench.dialled_link import DialledLink
from bench.fleet_hub import MACHINE, make_key
from bench.fleet_wire import LinkKey
from bench.result import Against, Result, Row, measuring

_LEAVES: Final = 4_000
_PATIENCE: Final = 3.0
"""Times the hub's own reckoning after which a side is ended."""
_LEAST_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.5
_CLOSE_FILES: Final = 64
_STORE: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Side:
    """What became of all links: how many are up at the end and after how long, and what that took."""

    up: int
    seconds: float
    dials: int
    cpu: float


def run() -> Result:
    leaves = int(os.environ.get("LEAVES", _LEAVES))
    with (
        measuring("dials", {"leaves": str(leaves)}) as result,
        tempfile.TemporaryDirectory(prefix="petiole-bench-") as directory,
    ):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        if most < leaves + _CLOSE_FILES:
            raise RuntimeError(
                f"{leaves} links need as many open files, {most} are allowed; raise `ulimit -n`"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        result.rows += uvloop.run(_both(Path(directory), leaves))
    return result


async def _both(directory: Path, leaves: int) -> list[Row]:
    keys = [make_key(number) for number in range(leaves)]
    config = _hub(directory, keys)
    server = EmbeddedServer(config, directory)
    links = [key for key, _ in keys]
    spread = spread_seconds(leaves)
    ours = await _side(server, config.leaf_listen, links, spread, max(_LEAST_SECONDS, _PATIENCE * spread))
    theirs = await _side(server, config.leaf_listen, links, 0.0, ours.seconds)
    all_of = f"{leaves:,} links dial at once"
    return [
        Row(
            f"{all_of}, each in its turn: up in the end",
            ours.up,
            "links",
            goal=1.0,
            against=Against("each dials on, as long", theirs.up),
        ),
        Row(f"{all_of}, each in its turn: after", ours.seconds, "s", least=True),
        *(
            row
            for what, side in (("each in its turn", ours), ("each dials on, as long", theirs))
            for row in (
                Row(f"{all_of}, {what}: dials", side.dials, "dials", least=True),
                Row(f"{all_of}, {what}: the hub's server", side.cpu, "CPU-seconds", least=True),
            )
        ),
    ]


async def _side(
    server: EmbeddedServer, listen: str, keys: list[LinkKey], spread: float, seconds: float
) -> Side:
    """All links from the start of the server on, until all are up or so many seconds have passed."""
    await server.start()
    assert server.pid is not None
    process, began = psutil.Process(server.pid), time.monotonic()
    links = [DialledLink(listen, key, spread) for key in keys]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(part()) for link in links for part in (link.dial, link.follow)]
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await _all_up(links)
            took, cpu = time.monotonic() - began, process.cpu_times()
            up, dials = sum(link.up for link in links), sum(link.dials for link in links)
            for task in tasks:
                task.cancel()
    finally:
        await server.stop()
    return Side(up, took, dials, cpu.user + cpu.system)


async def _all_up(links: list[DialledLink]) -> None:
    while not all(link.up for link in links):  # noqa: ASYNC110 - of thousands, each with an event
        await asyncio.sleep(_LOOK_SECONDS)


def _hub(directory: Path, keys: list[tuple[LinkKey, str]]) -> HubConfig:
    return HubConfig(
        server_name=server_name("hub", MACHINE),
        store_dir=directory / "store",
        max_file_store=_STORE,
        registrar=make_key(0)[1],
        registrar_system=make_key(0)[1],
        jobs=make_key(0)[1],
        leaves=tuple(LeafUser(key.domain, public, ("normal",)) for key, public in keys),
        listen=f"127.0.0.1:{free_port()}",
        leaf_listen=f"127.0.0.1:{free_port()}",
    )
