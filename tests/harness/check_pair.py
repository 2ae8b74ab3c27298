"""A hub and a leaf from configurations written by hand, whose users may do everything, for checks."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client

from agent.base.nats_server_version import find_binary
from agent.config import Config, Nats
from agent.config.keys import ensure_key
from agent.demo.ports import free_port
from agent.server.child import reap, spawn
from agent.server.probe import Watched, greeting
from tests.harness.servers import ask
from tests.harness.wait import until

ACCOUNTS = """
accounts {{
  SYS {{ users: [ {{ nkey: {system} }}, {{ user: admin, password: admin }} ] }}
  PETIOLE {{ jetstream: enabled, users: [ {{ nkey: {account} }}, {{ user: leaf, password: leaf }} ] }}
}}
system_account: SYS
"""
LINKED = '{{ urls: ["nats-leaf://leaf:leaf@127.0.0.1:{port}"], account: PETIOLE{more} }}'
SYSTEM_LINKED = '{{ urls: ["nats-leaf://admin:admin@127.0.0.1:{port}"], account: SYS }}'


@dataclass
class Pair:
    """A hub and a leaf by hand; `start_…` begins them, again after `end`, with the same stores."""

    directory: Path
    hub_port: int
    leaf_port: int
    dial_port: int
    _running: dict[str, Watched]

    @classmethod
    def make(cls, directory: Path) -> Pair:
        return cls(directory, free_port(), free_port(), free_port(), {})

    @property
    def config(self) -> Config:
        """The configuration of the leaf's agent."""
        keys = self.directory / "keys"
        return Config(
            domain="edge-1",
            state_dir=keys,
            nats=Nats(
                server="external",
                listen=f"127.0.0.1:{self.leaf_port}",
                seed_file=keys / "account",
                system_seed_file=keys / "system",
                hub_urls=[f"nats-leaf://leaf:leaf@127.0.0.1:{self.dial_port}"],
            ),
        )

    async def start_hub(
        self, domain: str = "hub", jetstream: bool = True, more: str = "", binary: Path | None = None
    ) -> None:
        leafnodes = f'listen: "127.0.0.1:{self.dial_port}", no_advertise: true{more}'
        await self._start("hub", self.hub_port, domain, leafnodes, jetstream, binary)

    async def start_leaf(
        self, domain: str = "edge-1", more: str = "", system: bool = False, name: str = "leaf"
    ) -> None:
        remotes = [LINKED.format(port=self.dial_port, more=more)]
        remotes += [SYSTEM_LINKED.format(port=self.dial_port)] if system else []
        port = self.leaf_port if name == "leaf" else free_port()
        await self._start(name, port, domain, f"remotes: [ {', '.join(remotes)} ]")
        for account in ("PETIOLE", "SYS") if system else ("PETIOLE",):
            await self._linked(name, account)

    async def end(self, name: str) -> None:
        process = self._running.pop(name)
        process.signal(9)  # type: ignore[arg-type]
        await process.ended.wait()
        reap(process.pid)

    async def close(self) -> None:
        for name in list(self._running):
            await self.end(name)

    async def make_stream(self, port: int, name: str, subject: str) -> None:
        client = await self._client(port)
        answer = await ask(client, f"$JS.API.STREAM.CREATE.{name}", {"name": name, "subjects": [subject]})
        assert "error" not in answer
        await client.close()

    async def has_stream(self, port: int, name: str) -> bool:
        return "state" in await self._info(port, name)

    async def messages(self, port: int, name: str) -> int:
        return int((await self._info(port, name))["state"]["messages"])

    async def _info(self, port: int, name: str) -> dict[str, Any]:
        client = await self._client(port)
        answer = await ask(client, f"$JS.API.STREAM.INFO.{name}")
        await client.close()
        return answer

    async def _client(self, port: int) -> Client:
        return await nats.connect(
            f"nats://127.0.0.1:{port}", nkeys_seed=str(self.directory / "keys" / "account")
        )

    async def _linked(self, name: str, account: str) -> None:
        def reached() -> bool:
            text = (self.directory / name / "out").read_text()
            return f"Leafnode connection created for account: {account}" in text

        await until(reached, f"{name} is linked")

    async def _start(
        self,
        name: str,
        port: int,
        domain: str,
        leafnodes: str,
        jetstream: bool = True,
        binary: Path | None = None,
    ) -> None:
        place = self.directory / name
        place.mkdir(exist_ok=True)
        keys = {one: ensure_key(self.directory / "keys" / one) for one in ("account", "system")}
        store = f'jetstream {{ store_dir: "{place}", {f"domain: {domain}" if domain else ""} }}'
        accounts = ACCOUNTS.format(**keys)
        if not jetstream:
            store, accounts = "", accounts.replace("jetstream: enabled, ", "")
        text = f'server_name: {name}-open\nlisten: "127.0.0.1:{port}"\n{store}\nleafnodes {{ {leafnodes} }}'
        (place / "server.conf").write_text(text + accounts)
        (place / "out").unlink(missing_ok=True)
        command = [str(binary or find_binary()), "-c", str(place / "server.conf")]
        self._running[name] = Watched(spawn(command, place, place / "out"))

        async def answers() -> bool:
            return await greeting(("127.0.0.1", port)) is not None

        await until(answers, f"{name} answers")


@contextlib.asynccontextmanager
async def pair(directory: Path) -> AsyncIterator[Pair]:
    one = Pair.make(directory)
    try:
        yield one
    finally:
        await one.close()
