"""What a hub's interval of syncing brings: messages of 1 kB a second that an aggregate takes from a leaf that
has them all, with `sync_interval` of a second, the default of an embedded hub, beside `always`.

*Durable source* is nats-server alone; beside the hub that syncs each second the file system is synced each
second, as its registrar does. *Whole path* are hub and leaf as `petiole run` makes them: the leaf gets the
messages while its hub is down, and the time runs from the first that the hub's stream has to the last.
*Backlog* is the whole path with 1,000 full batches of bytes that do not compress; beside it is the durable
source.

`MESSAGES=30000 ROUNDS=3 python -m bench hub-sync`.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import nats
from nats.aio.client import Client

from agent.contract import DEFAULT_CLASS, HUB_DOMAIN, aggregate, direct_subject, inbox_prefix, leaf_stream
from agent.demo import plan
from agent.demo.loopback import free_port
from agent.demo.plan import Member
from agent.demo.processes import program
from agent.hub.registrar.durability import sync_file_system
from agent.jetstream import JetStream, JetStreamError
from bench.agents import Bench
from bench.hub_stream import jetstream_server
from bench.relink_world import RawStream, make_at_hub, make_at_leaf
from bench.result import Against, Result, Row, interleaved, measuring, rounds

_MESSAGES: Final = 30_000
_GOAL: Final = 10.0
_BACKLOG_GOAL: Final = 0.9
_LOOK_SECONDS: Final = 0.01
_WAIT_SECONDS: Final = 120.0
_TOGETHER_BYTES: Final = 1_000_000
"""Published before an answer is awaited."""
_RAW: Final = RawStream("edge-1", "RAW", "durable")


@dataclass(frozen=True)
class Load:
    """So many messages with one body."""

    count: int
    body: bytes


def run() -> Result:
    load, times = Load(int(os.environ.get("MESSAGES", _MESSAGES)), b"x" * 1_000), rounds(3)
    with measuring("hub-sync") as result:
        for what, measure in (("durable source", _raw), ("whole path", _pair)):
            sides = {sync: partial(measure, sync, load) for sync in ("1s", "always")}
            values = interleaved(result, sides, times)
            if len(values) == len(sides):
                beside = Against("always", values["always"])
                row = Row(f"{what}: sync_interval 1s", values["1s"], "messages/s", _GOAL, beside)
                result.rows.append(row)
        _add_backlog(result, times)
    return result


def _add_backlog(result: Result, times: int) -> None:
    load = Load(1_000, os.urandom(256_000))
    sides = {"whole path": partial(_pair, "1s", load), "durable source": partial(_raw, "1s", load)}
    values = interleaved(result, sides, times)
    if len(values) == len(sides):
        path, source = ([each * len(load.body) / 1e6 for each in values[side]] for side in sides)
        what = "backlog, batches of 256 kB: sync_interval 1s"
        result.rows.append(Row(what, path, "MB/s", _BACKLOG_GOAL, Against("durable source", source)))


def _raw(sync: str, load: Load) -> float:
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="petiole-bench-") as name:
        directory = Path(name)
        leafs = f'leafnodes {{ listen: "127.0.0.1:{port}" }}'
        dial = f'leafnodes {{ remotes: [ {{ urls: [ "nats-leaf://127.0.0.1:{port}" ] }} ] }}'
        interval = f'sync_interval: "{sync}"'
        with (
            jetstream_server(directory / "hub", HUB_DOMAIN, leafs, interval) as hub,
            jetstream_server(directory / _RAW.domain, _RAW.domain, dial) as leaf,
            nullcontext() if sync == "always" else _synced(directory),
        ):
            return asyncio.run(_taken_raw(hub, leaf, load))


async def _taken_raw(hub: str, leaf: str, load: Load) -> float:
    nc, at_leaf = await _connected(hub), await _connected(leaf)
    await make_at_leaf(at_leaf, [_RAW])
    await _publish(at_leaf, _RAW.name, _RAW.subject, load)
    began = time.monotonic()
    await make_at_hub(nc, "ALL", [_RAW])
    await _until(nc, "ALL", load.count)
    seconds = time.monotonic() - began
    await at_leaf.close()
    await nc.close()
    return load.count / seconds


@contextmanager
def _synced(directory: Path) -> Iterator[None]:
    """Sync its file system each second."""
    ended = threading.Event()

    def sync() -> None:
        while not ended.wait(1.0):
            sync_file_system(directory)

    thread = threading.Thread(target=sync)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _pair(sync: str, load: Load) -> float:
    with tempfile.TemporaryDirectory(prefix="petiole-bench-") as name:
        hub, leaf = (plan.member(Path(name), domain) for domain in (HUB_DOMAIN, _RAW.domain))
        port = free_port()
        leaf_agent = _agent(leaf, plan.leaf_toml(leaf, port).partition("[[input]]")[0])
        command = [program("petiole"), "enrol", "-c", str(leaf.config)]
        key = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        toml = plan.hub_toml(hub, port, [key])
        hub_agent = _agent(hub, toml.replace("[registrar]", f'[registrar]\nsync_interval = "{sync}"'))
        try:
            hub_agent.start()
            leaf_agent.start()
            asyncio.run(_linked(hub))
            hub_agent.kill()
            hub_agent.stop_server()
            held = asyncio.run(_fill(leaf, load))
            hub_agent.start()
            return asyncio.run(_taken(hub, held, load.count))
        finally:
            for agent in (hub_agent, leaf_agent):
                agent.kill()
                agent.stop_server()


def _agent(member: Member, toml: str) -> Bench:
    member.directory.mkdir()
    member.config.write_text(toml)
    return Bench(member.directory, member.nats_port, member.admin_port, member.http_port)


async def _linked(hub: Member) -> None:
    """The hub has the leaf's first message, so that nothing but data is on its way later."""
    nc = await _jobs(hub)
    await _until(nc, aggregate(0), 1)
    await nc.close()


async def _fill(leaf: Member, load: Load) -> int:
    """Give the leaf messages; returns what its stream then holds."""
    keys = leaf.state / "keys"
    nc = await _connected(leaf.nats_url, keys / "agent.nk", leaf.domain)
    subject = direct_subject(leaf.domain, DEFAULT_CLASS, "bench", "value")
    name = leaf_stream(leaf.domain, DEFAULT_CLASS)
    await _publish(nc, name, subject, load)
    held = (await JetStream(nc).stream_info(name)).last
    await nc.close()
    return held


async def _taken(hub: Member, held: int, count: int) -> float:
    nc = await _jobs(hub)
    await _until(nc, aggregate(0), held - count + 1)
    began, first = time.monotonic(), (await JetStream(nc).stream_info(aggregate(0))).last
    await _until(nc, aggregate(0), held)
    seconds = time.monotonic() - began
    await nc.close()
    return (held - first) / seconds


async def _jobs(hub: Member) -> Client:
    return await _connected(hub.nats_url, hub.state / "keys" / "jobs.nk", "jobs")


async def _connected(url: str, key: Path | None = None, identity: str = "") -> Client:
    if key is None:
        return await nats.connect(url, error_cb=_ignore)
    inbox = inbox_prefix(identity).encode()
    return await nats.connect(url, nkeys_seed=str(key), inbox_prefix=inbox, error_cb=_ignore)


async def _ignore(_: Exception) -> None:
    """A server that does not answer yet is asked again."""


async def _publish(nc: Client, stream: str, subject: str, load: Load) -> None:
    """Publish so many messages; an answer for the last of some says that the server has all of them."""
    js = JetStream(nc, timeout=_WAIT_SECONDS)
    together = max(1, _TOGETHER_BYTES // len(load.body))
    for number in range(1, load.count + 1):
        if number % together and number != load.count:
            await nc.publish(subject, load.body)
        else:
            await js.publish(subject, load.body)
    if (held := (await js.stream_info(stream)).messages) < load.count:
        raise RuntimeError(f"{stream} holds {held} of {load.count} messages")


async def _until(nc: Client, stream: str, messages: int) -> None:
    js = JetStream(nc, timeout=30.0)
    async with asyncio.timeout(_WAIT_SECONDS):
        while True:
            try:
                if (await js.stream_info(stream)).last >= messages:
                    return
            except JetStreamError:
                pass  # it is being made
            await asyncio.sleep(_LOOK_SECONDS)
