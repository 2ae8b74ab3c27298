"""Ten thousand leaves on one hub, each with its own link and key and the permissions that are rendered: what
the registrar costs while nothing happens and while many ask for its pages, and how soon it knows all of them
again after it was killed.

The hub is a `petiole run` with its embedded server and a [[leaf]] table each. Two thousand leaves are
accounts of a real nats-server, with a stream, a link consumer and a batch each, whose sources stay. The
others speak the protocol of a leaf's server from this process; their only class is idle and rests, as the
registrar's records say from the beginning (a fleet that joins at once is not what is measured here). Each
announces itself every ten seconds as an agent does; one of the profile `thin`, whose classes rest, does so
once a minute.

`LEAVES=1000 python -m bench fleet-10k` for fewer, of which a fifth are real, or so many as `REAL`;
`CELL_LEAVES=200` puts them into cells of so many.
`KEEP=DIRECTORY` for its log.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import uvloop
from nats.aio.client import Client

from agent.contract import FLEET_BUCKET
from agent.jetstream import JetStream
from bench.fleet_hub import WAIT_SECONDS, Hub
from bench.fleet_setup import Fleet, open_fleet
from bench.load import cpu_seconds
from bench.measured import load
from bench.result import Result, Row, measuring

_LEAVES: Final = 10_000
_REAL: Final = 0.2
_REST_SECONDS: Final = 60.0
_SETTLE_SECONDS: Final = 20.0
_ASKERS: Final = 20
_WRITTEN_SECONDS: Final = 2.0
"""By then the agent has written how long its loop was blocked."""
_MOST: Final = {
    "at rest: registrar, CPU": (25.0, "% of a core"),
    "registrar, RSS": (256.0, "MB"),
    "most that the loop ran in one turn": (50.0, "ms"),
    "a silent agent is seen after": (35.0, "s"),
    "all known after its start": (15.0, "s"),
}
"""What a hub of two cores is to keep, by the end of the names of the rows."""


def run() -> Result:
    leaves = int(os.environ.get("LEAVES", _LEAVES))
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    with (
        measuring("fleet-10k", {"leaves": str(leaves), "real": os.environ.get("REAL", "a fifth")}) as result,
        runner,
    ):
        runner.run(_measure(result, leaves, int(os.environ.get("REAL", leaves * _REAL))))
    return result


async def _measure(result: Result, leaves: int, real: int) -> None:
    named = f"{leaves:,} leaves, {real:,} with a real source"
    async with open_fleet(leaves, real) as (fleet, first):
        result.rows.append(Row(f"{named}: all known after they first announce", first, "s", least=True))
        await fleet.at_rest()
        await asyncio.sleep(_SETTLE_SECONDS)
        result.rows += await _rest(fleet, named)
        result.rows += await _asked(fleet.hub, named)
        result.rows.append(
            Row(f"{named}: a silent agent is seen after", await _silent(fleet), "s", least=True)
        )
        result.rows += await _restart(fleet, named)
    result.rows += _bounds(named, result.rows)


def _bounds(named: str, rows: Sequence[Row]) -> list[Row]:
    """Whether each bound of `_MOST` is kept by all rows that it is of."""
    return [
        Row(
            f"{named}: {what}, above {most:g} {unit}",
            sum(row.what.endswith(what) and row.median > most for row in rows),
            "rows",
            must=0,
            least=True,
        )
        for what, (most, unit) in _MOST.items()
    ]


async def _rest(fleet: Fleet, named: str) -> list[Row]:
    hub, counted = fleet.hub, fleet.counted
    clients = [await hub.client("registrar"), await hub.client("registrar_system")]
    try:
        before, began = await _figures(fleet, clients), time.time()
        counted.slowest = 0.0
        await asyncio.sleep(_REST_SECONDS)
        others = await asyncio.to_thread(load)
        after, seconds = await _figures(fleet, clients), time.time() - began
    finally:
        for client in clients:
            await client.close()
    spent = {name: after[name] - before[name] for name in after}
    print(counted, spent, "load", others, flush=True)
    longest, ran = hub.blocked(began)
    answered = spent["answered"]
    return [
        Row(f"{named}, at rest: registrar, CPU", 100 * spent["agent"] / seconds, "% of a core", least=True),
        Row(f"{named}, at rest: registrar, RSS", hub.process.memory_info().rss / 1e6, "MB", least=True),
        Row(f"{named}, at rest: the hub's nats-server, CPU", 100 * spent["server"] / seconds, "% of a core"),
        Row(f"{named}, at rest: announcements answered", answered / seconds, "a second"),
        Row(f"{named}, at rest: requests to JetStream", spent["api"] / seconds, "a second", least=True),
        Row(f"{named}, at rest: records written", spent["records"] / seconds, "a second", least=True),
        Row(f"{named}, at rest: longest between two turns of the loop", 1e3 * longest, "ms", least=True),
        Row(f"{named}, at rest: most that the loop ran in one turn", 1e3 * ran, "ms", least=True),
        Row(f"{named}, at rest: slowest answer", 1e3 * counted.slowest, "ms", least=True),
    ]


async def _asked(hub: Hub, named: str) -> list[Row]:
    """The loop while many ask for the same at once."""
    rows = []
    with ThreadPoolExecutor(_ASKERS) as threads:
        for path in ("/status", "/fleet", "/fleet.json", "/metrics"):
            began = time.time()
            loop = asyncio.get_running_loop()
            asking = [loop.run_in_executor(threads, hub.page, path) for _ in range(_ASKERS)]
            answers = await asyncio.gather(*asking)
            seconds = time.time() - began
            await asyncio.sleep(_WRITTEN_SECONDS)
            if None in answers:
                raise RuntimeError(f"{answers.count(None)} of {_ASKERS} who asked for {path} got no answer")
            longest, ran = hub.blocked(began)
            asked = f"{named}, {_ASKERS} ask for {path} at once"
            rows += [
                Row(f"{asked}: the last has its answer after", seconds, "s", least=True),
                Row(f"{asked}: longest between two turns of the loop", 1e3 * longest, "ms", least=True),
                Row(f"{asked}: most that the loop ran in one turn", 1e3 * ran, "ms", least=True),
            ]
    return rows


async def _figures(fleet: Fleet, clients: list[Client]) -> dict[str, float]:
    account, system = clients
    varz = json.loads((await system.request("$SYS.REQ.SERVER.PING.VARZ", timeout=60)).data)
    records = await JetStream(account, timeout=60.0).stream_info(f"KV_{FLEET_BUCKET}")
    return {
        "agent": cpu_seconds(fleet.hub.process),
        "server": cpu_seconds(fleet.hub.server),
        "api": float(varz["data"]["jetstream"]["stats"]["api"]["total"]),
        "records": float(records.last),
        "answered": float(fleet.counted.answered),
        "repeats": float(fleet.counted.repeats),
        "refused": float(fleet.counted.refused),
        "timed_out": float(fleet.counted.timed_out),
    }


async def _silent(fleet: Fleet) -> float:
    """Seconds from the last answer to an agent that ends until the hub counts it as silent."""
    leaf = fleet.leaves[0]
    leaf.silent = True
    deadline = time.monotonic() + WAIT_SECONDS
    await asyncio.sleep(15.0)
    while not await fleet.hub.gauge("petiole_fleet_silent_leaves"):
        if time.monotonic() > deadline:
            raise RuntimeError("no agent is counted as silent")
        await asyncio.sleep(0.5)
    seen = time.time() - leaf.answered_at
    leaf.silent = False
    await fleet.all_answered(time.time())
    return seen


async def _restart(fleet: Fleet, named: str) -> list[Row]:
    hub = fleet.hub
    hub.kill()
    fleet.counted.refused, fleet.counted.slowest = 0, 0.0
    fleet.counted.reasons.clear()
    await asyncio.sleep(3.0)
    began = hub.start()
    ready = await hub.ready()
    known = await fleet.all_answered(began)
    used = cpu_seconds(hub.process)
    longest, ran = hub.blocked(began)
    print(fleet.counted, flush=True)
    named = f"{named}, registrar killed"
    return [
        Row(f"{named}: ready after its start", ready - began, "s", least=True),
        Row(f"{named}: all known after its start", known - began, "s", least=True),
        Row(f"{named}: registrar, CPU until then", used, "CPU-seconds", least=True),
        Row(f"{named}: announcements refused for now", fleet.counted.refused, "announcements", least=True),
        Row(f"{named}: longest between two turns of the loop", 1e3 * longest, "ms", least=True),
        Row(f"{named}: most that the loop ran in one turn", 1e3 * ran, "ms", least=True),
        Row(f"{named}: registrar, RSS", hub.process.memory_info().rss / 1e6, "MB", least=True),
    ]
