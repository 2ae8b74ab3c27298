"""A hub of thousands of leaves whose server has started: all of them dial it at once. Links that close their
gate as `agent.leaf.link.gate` decides, beside links that dial on, as nats-server does by itself.

The hub's server is real. The leaves are played in this process (`bench.dialled_link`), on the same cores.
Their classes rest, so that the hub has no source for them, or `REAL` of them have one.
`LEAVES=10000 REAL=500 python -m bench dials` for other numbers than 4,000 and 0, `CELL_LEAVES=200` for cells
of so many leaves.
"""

from __future__ import annotations

import asyncio
import os
import resource
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import nats
import psutil
import uvloop

from agent.contract import DEFAULT_CLASS, HOME, aggregate, inbox_prefix, server_name
from agent.demo.loopback import free_port
from agent.hub.registrar.aggregate import AggregateSettings, aggregate_config, source
from agent.hub.registrar.fleet_state import spread_seconds
from agent.jetstream import JetStream
from agent.server.process import EmbeddedServer
from agent.server.values import HubConfig, LeafUser
from bench.dialled_link import DialledLink
from bench.fleet_hub import MACHINE, SOURCES, make_key
from bench.fleet_leaves import Counted, SmallLeaf
from bench.fleet_wire import LinkKey
from bench.result import Against, Result, Row, measuring

_LEAVES: Final = 4_000
_PATIENCE: Final = 3.0
"""Times the hub's own reckoning after which a side is ended."""
_LEAST_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.5
_CLOSE_FILES: Final = 64
_STORE: Final = 4 << 30
_STREAM_BYTES: Final = 64 << 20
_API_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Side:
    """What became of all links: how many are up at the end and after how long, and what that took."""

    up: int
    seconds: float
    dials: int
    cpu: float


def run() -> Result:
    leaves = int(os.environ.get("LEAVES", _LEAVES))
    real = int(os.environ.get("REAL", 0))
    with (
        measuring("dials", {"leaves": str(leaves), "real": str(real)}) as result,
        tempfile.TemporaryDirectory(prefix="petiole-bench-") as directory,
    ):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        if most < leaves + _CLOSE_FILES:
            raise RuntimeError(
                f"{leaves} links need as many open files, {most} are allowed; raise `ulimit -n`"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        result.rows += uvloop.run(_both(Path(directory), leaves, real))
    return result


async def _both(directory: Path, count: int, real: int) -> list[Row]:
    keys = [make_key(number) for number in range(count)]
    most = int(os.environ.get("CELL_LEAVES", count))
    cells = {str(n) if n else HOME: make_key(count + n) for n in range(-(-count // most))}
    of = [list(cells)[number // most] for number in range(count)]
    config = _hub(directory, keys, of, {cell: public for cell, (_, public) in cells.items()})
    server = EmbeddedServer(config, directory)
    leaves = [SmallLeaf(key, MACHINE, Counted()) for key, _ in keys]
    await server.start()
    for cell, (registrar, _) in cells.items():
        ours = [leaves[number] for number in range(count) if of[number] == cell]
        await _give_sources(server.url, registrar, cell, ours[: -(-real // len(cells))])
    await server.end()
    spread = spread_seconds(*Counter(of).values())
    links = [DialledLink(config.leaf_listen, leaf, spread) for leaf in leaves]
    in_turn = await _side(server, links, max(_LEAST_SECONDS, _PATIENCE * spread))
    links = [DialledLink(config.leaf_listen, leaf, 0.0) for leaf in leaves]
    dial_on = await _side(server, links, in_turn.seconds)
    all_of = f"{count:,} links dial at once, {real:,} with a source"
    return [
        Row(
            f"{all_of}, each in its turn: up in the end",
            in_turn.up,
            "links",
            goal=1.0,
            against=Against("each dials on, as long", dial_on.up),
        ),
        Row(f"{all_of}, each in its turn: after", in_turn.seconds, "s", least=True),
        *(
            row
            for what, side in (("each in its turn", in_turn), ("each dials on, as long", dial_on))
            for row in (
                Row(f"{all_of}, {what}: dials", side.dials, "dials", least=True),
                Row(f"{all_of}, {what}: the hub's server", side.cpu, "CPU-seconds", least=True),
            )
        ),
    ]


async def _side(server: EmbeddedServer, links: list[DialledLink], seconds: float) -> Side:
    """All links from the start of the server on, until all are up or so many seconds have passed."""
    await server.start()
    try:
        assert server.pid is not None
        process, began = psutil.Process(server.pid), time.monotonic()
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


async def _give_sources(url: str, registrar: LinkKey, cell: str, leaves: list[SmallLeaf]) -> None:
    """Have the streams of a cell source leaves."""
    client = await nats.connect(
        url, nkeys_seed_str=registrar.seed, inbox_prefix=inbox_prefix("registrar").encode()
    )
    js = JetStream(client, timeout=_API_SECONDS)
    settings = AggregateSettings(_STREAM_BYTES)
    for begin in range(0, len(leaves), SOURCES):
        group = leaves[begin : begin + SOURCES]
        sources = [source(leaf.domain, DEFAULT_CLASS, leaf.epoch) for leaf in group]
        name = aggregate(begin // SOURCES, cell)
        await js.api(f"STREAM.CREATE.{name}", aggregate_config(name, settings, sources))
    await client.close()


async def _all_up(links: list[DialledLink]) -> None:
    while not all(link.up for link in links):  # noqa: ASYNC110 - of thousands, each with an event
        await asyncio.sleep(_LOOK_SECONDS)


def _hub(
    directory: Path, keys: list[tuple[LinkKey, str]], of: list[str], registrars: dict[str, str]
) -> HubConfig:
    """The server's configuration; `of` is the cell of each leaf."""
    return HubConfig(
        server_name=server_name("hub", MACHINE),
        store_dir=directory / "store",
        max_file_store=_STORE,
        registrar=registrars[HOME],
        cells={cell: key for cell, key in registrars.items() if cell != HOME},
        registrar_system=make_key(0)[1],
        jobs=make_key(0)[1],
        aggregates=tuple(
            aggregate(number, cell)
            for cell, count in Counter(of).items()
            for number in range(-(-count // SOURCES))
        ),
        leaves=tuple(
            LeafUser(key.domain, public, ("normal",), cell=cell)
            for (key, public), cell in zip(keys, of, strict=True)
        ),
        listen=f"127.0.0.1:{free_port()}",
        leaf_listen=f"127.0.0.1:{free_port()}",
    )
