"""The fleet of the ten thousand leaves: all processes, joined and announcing themselves. Of the leaves with
real streams one nats-server stands for many: each is an account with JetStream, its own link to the hub with
its own key, and the names of its own JetStream domain."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from agent.base.files import write_private
from agent.base.nats_server import find_binary
from agent.base.wait import bounded_gather
from agent.contract import (
    DEFAULT_CLASS,
    FLEET_BUCKET,
    Answer,
    batch_subject,
    cell_api,
    inbox_prefix,
    link_consumer,
)
from agent.demo.loopback import free_port
from agent.hub.registrar.records import encode
from agent.jetstream import JetStream
from bench.fleet_hub import (
    LOOK_SECONDS,
    MACHINE,
    WAIT_SECONDS,
    Hub,
    aggregate_of,
    listens,
    made,
    make_hub,
    make_key,
)
from bench.fleet_leaves import AnnouncingLeaf, Counted, SmallLeaf, consumer
from bench.fleet_wire import LinkKey, Wire

_JOINING: Final = 200
"""Real leaves that join at once: two thousand keep both servers of two cores busy for longer than requests to
JetStream wait, and their announcements come again and again."""


@dataclass(slots=True)
class Fleet:
    hub: Hub
    leaves: list[AnnouncingLeaf]
    counted: Counted
    real: int

    async def all_answered(self, since: float) -> float:
        """When the last leaf was answered after a time, in seconds since 1970. Raises `RuntimeError`."""
        deadline = time.monotonic() + WAIT_SECONDS
        while missing := sum(leaf.answered_at < since for leaf in self.leaves):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{missing} leaves are not answered: {self.counted}")
            await asyncio.sleep(LOOK_SECONDS)
        return max(leaf.answered_at for leaf in self.leaves if leaf.answered_at >= since)

    async def at_rest(self) -> None:
        """Return when every class flows or rests. Raises `RuntimeError`."""
        deadline = time.monotonic() + WAIT_SECONDS
        while missing := sum(leaf.classes_state not in ("flowing", "resting") for leaf in self.leaves):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{missing} classes are not at rest: {self.counted}")
            await asyncio.sleep(1.0)


@asynccontextmanager
async def open_fleet(leaves: int, real: int) -> AsyncIterator[tuple[Fleet, float]]:
    """All processes, and how long it took until each leaf was answered once."""
    with tempfile.TemporaryDirectory(prefix="petiole-bench-") as name:
        directory = Path(name)
        keys = [make_key(number) for number in range(leaves)]
        hub = make_hub(directory / "hub", [key for key, _ in keys], [public for _, public in keys])
        counted, sources, port = Counted(), None, free_port()
        small = [SmallLeaf(key, MACHINE, counted) for key, _ in keys[real:]]
        large = [RealLeaf(key, MACHINE, counted) for key, _ in keys[:real]]
        try:
            await seed(hub, small, real)
            text = configuration(directory / "real", port, hub.links, [one.key for one in large])
            sources = start(directory / "real", text)
            await listens(port)
            at = time.time()
            for begin in range(0, real, _JOINING):
                group = large[begin : begin + _JOINING]
                await bounded_gather(lambda leaf: leaf.connect(port), group)
                announcing(group)
                await Fleet(hub, list(group), counted, real).at_rest()
            print(f"{real} sources after {time.time() - at:.1f} s: {counted}", flush=True)
            at = time.time()
            await bounded_gather(lambda leaf: leaf.connect(hub.links), small)
            print(f"{len(small)} links after {time.time() - at:.1f} s", flush=True)
            fleet, at = Fleet(hub, [*small, *large], counted, real), time.time()
            announcing(small)
            first = await fleet.all_answered(at) - at
            print(f"all answered after {first:.1f} s: {counted}", flush=True)
            yield fleet, first
        finally:
            hub.end()
            if sources is not None:
                sources.kill()
                sources.wait()


def announcing(leaves: Iterable[AnnouncingLeaf]) -> None:
    """Let leaves begin to announce, at moments of their own."""
    for leaf in leaves:
        leaf.begin(random.uniform(0.0, 10.0))


async def seed(hub: Hub, small: list[SmallLeaf], real: int) -> None:
    """Start the hub with the records of leaves that rest."""
    began = hub.start()
    print(f"hub ready after {await hub.ready() - began:.1f} s", flush=True)
    client, jobs = await hub.client("registrar"), await hub.client("jobs")
    js = JetStream(client, timeout=10.0)
    streams = sorted({aggregate_of(number) for number in range(real + len(small))})
    infos = {}
    for name in streams:
        looking = JetStream(jobs, cell_api(name), timeout=10.0)
        await made(looking, name)
        infos[name] = await looking.stream_info(name)
    hub.kill()
    server = str(client._server_info["server_id"])  # the client does not tell it

    async def store(numbered: tuple[int, SmallLeaf]) -> None:
        number, leaf = numbered
        info = infos[aggregate_of(real + number)]
        await js.publish(f"$KV.{FLEET_BUCKET}.{leaf.domain}", encode(leaf.record(info, server)))

    await bounded_gather(store, enumerate(small))
    await client.close()
    await jobs.close()
    began = hub.start()
    print(f"hub with records ready after {await hub.ready() - began:.1f} s", flush=True)


_PASSWORD: Final = "bench"


def configuration(directory: Path, port: int, hub: int, keys: Iterable[LinkKey]) -> str:
    """The configuration of that server. A domain is another name for `$JS.API` in its account, which is what
    nats-server itself makes of the domain of a whole server."""
    accounts, remotes = [], []
    for key in keys:
        name = key.domain
        accounts.append(
            f'  "{name}": {{ jetstream: enabled, users: [ {{ user: "{name}", password: {_PASSWORD} }} ],\n'
            f'    mappings: {{ "$JS.{name}.API.>": "$JS.API.>" }} }}\n'
        )
        remotes.append(
            f'    {{ urls: [ "nats-leaf://127.0.0.1:{hub}" ], account: "{name}", nkey: "{key.seed}",'
            f' compression: off, dial_timeout: "10s", first_info_timeout: "10s" }}\n'
        )
    return f"""\
server_name: real-sources
listen: "127.0.0.1:{port}"
log_file: {json.dumps(str(directory / "nats-server.log"))}
ping_interval: "5s"
ping_max: 2
jetstream: {{
  domain: real-sources, store_dir: {json.dumps(str(directory / "store"))}, max_file_store: {2**40}
}}
accounts: {{
{"".join(accounts)}}}
leafnodes: {{
  remotes: [
{"".join(remotes)}  ]
}}
"""


def start(directory: Path, text: str) -> subprocess.Popen[bytes]:
    directory.mkdir(parents=True)
    path = directory / "nats-server.conf"
    write_private(path, text.encode())
    with (directory / "output").open("ab") as output:
        return subprocess.Popen(
            [find_binary(), "-c", path], stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )


class RealLeaf(AnnouncingLeaf):
    """An account of a real server, with a stream, a link consumer and one message."""

    async def connect(self, port: int) -> None:
        """Connect to the server, and make the stream where it is missing."""
        self._waits: dict[str, asyncio.Future[bytes]] = {}
        self.wire = Wire(self.received, login=(self.domain, _PASSWORD))
        await Wire.connect(port, self.wire)
        self.wire.subscribe(f"{inbox_prefix(self.domain)}.*")
        made = await self._api(
            f"STREAM.CREATE.{self.stream}",
            {"name": self.stream, "subjects": [f"tel.{self.domain}.>"], "storage": "file", "num_replicas": 1},
        )
        name = link_consumer(self.epoch)
        config = consumer(self.domain, self.epoch)
        await self._api(
            f"CONSUMER.CREATE.{self.stream}.{name}", {"stream_name": self.stream, "config": config}
        )
        await self.store()
        self.state = replace(self.state, created=made["created"], idle=False)

    async def store(self) -> None:
        """One more message."""
        n = self.state.last + 1
        headers = f"NATS/1.0\r\nNats-Msg-Id: {self.run}-{DEFAULT_CLASS}-{n}\r\n\r\n".encode()
        subject = batch_subject(self.domain, DEFAULT_CLASS, "http")
        ack = json.loads(await self._request(subject, b"{}\n", headers))
        assert ack["seq"] == n, ack
        self.state = replace(self.state, last=n, bytes=100 * n)

    def received(self, subject: str, reply: str, body: bytes) -> None:
        wait = self._waits.pop(subject, None)
        if wait is not None and not wait.done():
            wait.set_result(body)
        elif subject == self._inbox and self._asked is not None and not body:
            self._asked = None
            self._unreachable()
        else:
            super().received(subject, reply, body)

    def _compare(self, answer: Answer) -> None:
        super()._compare(answer)
        self.state = replace(self.state, acked=self.state.confirmed)

    async def _api(self, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(await self._request(f"$JS.API.{verb}", json.dumps(body).encode()))
        if "error" in found:
            raise RuntimeError(f"{self.domain}: {verb}: {found['error']}")
        return found

    async def _request(self, subject: str, data: bytes, headers: bytes = b"") -> bytes:
        inbox = f"{inbox_prefix(self.domain)}.{len(self._waits)}q"
        wait = self._waits[inbox] = asyncio.get_running_loop().create_future()
        self.wire.publish(subject, data, inbox, headers)
        async with asyncio.timeout(60):
            answer: bytes = await wait
        return answer
