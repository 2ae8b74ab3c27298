"""Checks of servers that a test runs, and a hub and a leaf from configurations written by hand for them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nats

from agent.cli.check import check_online
from agent.cli.checks import Finding, Level
from agent.config import Config, LeafMember, Nats, StreamClass
from agent.config.keys import ensure_key
from agent.demo.loopback import free_port
from tests.harness.configured import ConfiguredServer
from tests.harness.servers import Hub, Leaf, ask
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


def config_of(leaf: Leaf, state: Path, hub_urls: tuple[str, ...] | None = None) -> Config:
    """The configuration of an agent beside a leaf's server, with what it needs to dial the hub."""
    state.mkdir(mode=0o700, exist_ok=True)
    return Config(
        domain=leaf.domain,
        state_dir=state,
        nats=Nats(
            server="external",
            listen=leaf.config.listen,
            seed_file=leaf.keys["agent"],
            system_seed_file=leaf.keys["agent_system"],
            hub_urls=list(leaf.config.hub_urls if hub_urls is None else hub_urls),
            link_seed_file=leaf.config.link_key_file,
        ),
        class_=[StreamClass(name) for name in leaf.config.classes],
    )


def hub_config_of(hub: Hub, state: Path) -> Config:
    """The configuration of an agent beside a hub's server."""
    state.mkdir(mode=0o700, exist_ok=True)
    return Config(
        domain="hub",
        role="hub",
        state_dir=state,
        nats=Nats(
            server="external",
            listen=hub.config.listen,
            leaf_listen=hub.config.leaf_listen,
            seed_file=hub.keys["registrar"],
            system_seed_file=hub.keys["registrar_system"],
        ),
        leaf=[LeafMember(one.domain, one.key, list(one.classes)) for one in hub.config.leaves],
    )


async def check(config: Config) -> list[Finding]:
    """All findings but that no agent runs beside these servers."""
    found = await check_online(config, Path("petiole.toml"))
    assert all(bool(one.remedy) is (one.level is not Level.OK) for one in found), found
    return [one for one in found if one.group != "agent"]


def bad(found: list[Finding]) -> list[str]:
    """The sentences of what is not well; the clock is the machine's own, which a test has not set."""
    return [one.sentence for one in found if one.level is not Level.OK and one.group != "clock"]


def of(found: list[Finding], words: str) -> Finding:
    """The one finding with these words in its sentence."""
    matching = [one for one in found if words in one.sentence]
    assert len(matching) == 1, (words, [one.sentence for one in found])
    return matching[0]


@dataclass
class HandmadePair:
    """A hub and a leaf by hand; `start_…` begins them, again after `end`, with the same stores."""

    directory: Path
    hub_port: int
    leaf_port: int
    dial_port: int
    _running: dict[str, ConfiguredServer]

    @classmethod
    def make(cls, directory: Path) -> HandmadePair:
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
        server = await self._start(name, port, domain, f"remotes: [ {', '.join(remotes)} ]")
        linked = [f"connection created for account: {name}" for name in ("PETIOLE", "SYS")[: 1 + system]]
        await until(lambda: all(line in server.log for line in linked), f"{name} is linked")

    async def end(self, name: str) -> None:
        await self._running.pop(name).kill()

    async def close(self) -> None:
        for name in list(self._running):
            await self.end(name)

    async def make_stream(self, port: int, name: str, subject: str) -> None:
        answer = await self._ask(port, f"$JS.API.STREAM.CREATE.{name}", {"name": name, "subjects": [subject]})
        assert "error" not in answer

    async def has_stream(self, port: int, name: str) -> bool:
        return "state" in await self._ask(port, f"$JS.API.STREAM.INFO.{name}")

    async def messages(self, port: int, name: str) -> int:
        return int((await self._ask(port, f"$JS.API.STREAM.INFO.{name}"))["state"]["messages"])

    async def _ask(self, port: int, subject: str, body: object = None) -> dict[str, Any]:
        seed = str(self.directory / "keys" / "account")
        client = await nats.connect(f"nats://127.0.0.1:{port}", nkeys_seed=seed)
        try:
            return await ask(client, subject, body)
        finally:
            await client.close()

    async def _start(
        self,
        name: str,
        port: int,
        domain: str,
        leafnodes: str,
        jetstream: bool = True,
        binary: Path | None = None,
    ) -> ConfiguredServer:
        place = self.directory / name
        keys = {user: ensure_key(self.directory / "keys" / user) for user in ("account", "system")}
        store = f'jetstream {{ store_dir: "{place}", {f"domain: {domain}" if domain else ""} }}'
        accounts = ACCOUNTS.format(**keys)
        if not jetstream:
            store, accounts = "", accounts.replace("jetstream: enabled, ", "")
        text = f'server_name: {name}-open\nlisten: "127.0.0.1:{port}"\n{store}\nleafnodes {{ {leafnodes} }}'
        (place / "out").unlink(missing_ok=True)
        self._running[name] = ConfiguredServer(place, name, port, text + accounts, binary)
        await self._running[name].start()
        return self._running[name]


@contextlib.asynccontextmanager
async def pair(directory: Path) -> AsyncIterator[HandmadePair]:
    servers = HandmadePair.make(directory)
    try:
        yield servers
    finally:
        await servers.close()
