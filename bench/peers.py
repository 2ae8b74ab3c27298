"""Petiole beside Telegraf, built here from its Go module, and beside rsyslog 8 as Debian packages it. Each
takes readings at the edge, and the hub has them on disk, synced.

What they promise is not the same. Petiole answers a request when every reading of it is stored and synced at
the edge. rsyslog's *synced* queue keeps that promise; its *documented* queue, which is what its documents
show for reliable forwarding, is in memory and saved at a shutdown. **Telegraf answers when it has parsed a
request, before it has stored anything**: its buffer of 100,000 metrics (ten times its default) is in memory,
or in a log on disk, and what finds it full pushes out the oldest. So a request costs it less, and a process
that is killed loses what it answered for. It publishes to JetStream at the hub once a second and whenever it
has a batch, 1,000 metrics a message. Started while the hub is unreachable, it takes nothing until it has
reached it.

First requests, as fast as 16 connections are answered (120 where a request has one reading), in turns, by the
CPU-seconds of the process that answers: Petiole's agent and Telegraf, JSON as NDJSON or as an array,
whichever it takes. The agent's nats-server is not counted there.

Then a load until all of it is at the hub, in turns, by the CPU-seconds of all processes at the edge: agent
and nats-server, one Telegraf, one rsyslogd. rsyslog takes messages over RELP and does not look into them, a
reading or 500 a message. *Answered and not at the hub* is counted when nothing more has come for a while.

The faults come at 100 readings a second, or what is taken of them, each sent again until it is acknowledged:
the link cut for 10 s; every process at the edge SIGKILLed and started; and the second within the first. Lost:
acknowledged, and not at the hub in the end. Doubled: more than once in the hub's stream or file; Petiole's
table would drop those.

Needs Go, a C compiler and the packages `rsyslog` and `rsyslog-relp`; what is missing is left out and said.
"""

from __future__ import annotations

import asyncio
import tempfile
from functools import partial
from pathlib import Path

from bench import peer_faults, peer_load, peer_requests, rsyslog, telegraf
from bench.peer_load import Peer
from bench.peer_sides import open_side, petiole
from bench.peer_sides import rsyslog as rsyslog_side
from bench.peer_sides import telegraf as telegraf_side
from bench.result import Result, measuring, rounds


def run() -> Result:
    count = rounds()
    with measuring("peers", {"rounds": str(count)}) as result:
        peers = []
        with result.part("all beside Telegraf"):
            telegraf.program()
            peers += _telegrafs()
        if peers:
            with (
                result.part("requests beside Telegraf"),
                tempfile.TemporaryDirectory(prefix="petiole-bench-") as directory,
            ):
                peer_requests.measure(result, Path(directory), count)
        with result.part("all beside rsyslog"):
            result.options["rsyslog"] = rsyslog.version()
            peers += _rsyslogs()
        with result.part("load until it is at the hub"):
            asyncio.run(peer_load.measure(result, peers, count))
        with result.part("faults"):
            asyncio.run(_faults(result, peers))
    return result


def _telegrafs() -> list[Peer]:
    memory, disk = (f"Telegraf, buffer {where}" for where in ("in memory", "on disk"))
    return [
        Peer(memory, partial(telegraf_side, buffer="memory"), {memory: peer_load.lines}),
        Peer(disk, partial(telegraf_side, buffer="disk"), {disk: peer_load.lines}),
    ]


def _rsyslogs() -> list[Peer]:
    synced, documented = (f"rsyslog, {queue} queue" for queue in ("synced", "documented"))
    each, many = "a reading a message", f"{peer_load.LINES} readings a message"
    one, several = peer_load.relp(1), peer_load.relp(peer_load.LINES)
    return [
        Peer(
            synced,
            partial(rsyslog_side, queue="synced"),
            {f"{synced}, {each}": one, f"{synced}, {many}": several},
        ),
        Peer(documented, partial(rsyslog_side, queue="documented"), {f"{documented}, {each}": one}),
    ]


async def _faults(result: Result, peers: list[Peer]) -> None:
    """All at the same time, for at this rate none of them is busy."""
    async with asyncio.TaskGroup() as group:
        ours = group.create_task(_play(Peer("Petiole", petiole, {})))
        theirs = {peer.name: group.create_task(_tried(result, peer)) for peer in peers}
    outcomes = {name: task.result() for name, task in theirs.items()}
    tried = {name: outcome for name, outcome in outcomes.items() if outcome}
    result.rows += peer_faults.rows(ours.result(), tried)


async def _tried(result: Result, peer: Peer) -> list[peer_faults.Outcome]:
    """Its outcomes; none where it fails, which is noted."""
    with result.part(f"faults, {peer.name}"):
        return await _play(peer)
    return []


async def _play(peer: Peer) -> list[peer_faults.Outcome]:
    async with open_side(peer.opened, direct=False) as side:
        return await peer_faults.play(side)
