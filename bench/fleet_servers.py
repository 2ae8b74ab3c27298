"""Leaves with real streams: one nats-server stands for many of them. Each is an account with JetStream, its
own link to the hub with its own key, and the names of its own JetStream domain."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from agent.base.files import write_private
from agent.base.nats_server import find_binary
from agent.contract import DEFAULT_CLASS, Answer, batch_subject, inbox_prefix, link_consumer
from bench.fleet_leaves import AnnouncingLeaf, consumer
from bench.fleet_wire import LinkKey, Wire

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
            f" compression: off }}\n"
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
