"""The servers as they are rendered, with one thing added: in each account an observer who hears and says
everything there.

    hub                  accounts PETIOLE, TENANT_acme and SYS
    edge-1, edge-2       honest leaves, of the account PETIOLE
    edge-3, acme-1       leaves in the wrong hands (`raw_link`); acme-1 is a tenant's
    other hub, edge-4    a hub under no rule, and an honest leaf that dials it
"""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import nats
from msgspec.structs import replace
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from agent.base.files import create_private, private_directory, write_private
from agent.config.keys import ensure_key, password_line, seed_line
from agent.contract import ACCOUNT, announce_subject, inbox_prefix, tenant_account
from agent.demo.loopback import free_port
from agent.server.render import LINK_INCLUDE, render
from agent.server.values import LeafConfig, LeafUser, MqttListener, MqttUser, ServerConfig, address_of
from tests.harness.configured import ConfiguredServer, closed
from tests.harness.servers import make_hub, make_leaf
from tests.harness.wait import until
from tests.security.catalogue import APP, HEARD

TENANT = tenant_account("acme")
SYSTEM = "SYS"
MQTT_USER, MQTT_PASSWORD = "plant", "plant-password"
LEAVES = ("edge-1", "edge-2")
ROGUES = {"edge-3": "", "acme-1": "acme"}
_ACCOUNT = re.compile(r"  (\w+): \{")
_UNRULED = """
server_name: unruled
listen: "127.0.0.1:{port}"
jetstream {{ domain: hub, store_dir: "{directory}/store", max_file_store: 100MB }}
leafnodes {{ listen: "127.0.0.1:{leaf_port}" }}
accounts {{
  PETIOLE {{ jetstream: enabled, users: [ {{ user: PETIOLE, password: observer }}, {{ nkey: {key} }} ] }}
}}
"""


@dataclass(frozen=True, slots=True)
class Place:
    """An account of a server."""

    server: str
    account: str


class Observer:
    """One who hears everything at a place."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.heard: set[bytes] = set()
        self._all: Subscription

    async def listen(self) -> None:
        """Begin to hear."""

        async def note(message: Msg) -> None:
            self.heard.add(message.data)

        self._all = await self.client.subscribe(">", cb=note)
        await self.client.flush()

    async def caught_up(self) -> None:
        """Return when all that the server has for this one is noted."""
        await passed(self.client)
        await until(lambda: not self._all.pending_msgs, "all is noted", 60)


async def passed(client: Client) -> None:
    """Return when the server has seen all that was published: the first PING of nats-py 2.16 overtakes what
    it holds back to send together."""
    for _ in range(2):
        await client.flush(60)


@dataclass
class Plant:
    """All of it, running and linked. `keys` are the seed files of each server's identities."""

    servers: dict[str, ConfiguredServer]
    observers: dict[Place, Observer]
    keys: dict[str, dict[str, Path]]
    hub_leaf_port: int
    mqtt_port: int

    async def settled(self) -> None:
        """Return when whatever was published at any place before is wherever it goes: on each link a mark
        that follows it has arrived, those to the hub first."""
        await self._flush()
        for leaf in (*LEAVES, "edge-4"):
            await self._mark(leaf, _above(leaf), announce_subject(leaf))
        await self._flush()
        for leaf in (*LEAVES, "edge-4"):
            await self._mark(_above(leaf), leaf, f"{inbox_prefix(leaf)}.mark")
        await self._flush()

    async def _mark(self, start: str, end: str, subject: str) -> None:
        begin, target = self.observers[Place(start, ACCOUNT)], self.observers[Place(end, ACCOUNT)]
        mark = secrets.token_hex(8).encode()

        async def arrived() -> bool:
            await begin.client.publish(subject, mark)
            await begin.client.flush()
            return mark in target.heard

        await until(arrived, f"a mark from {start} is at {end}", 60)

    async def _flush(self) -> None:
        for one in self.observers.values():
            await one.caught_up()


def _above(leaf: str) -> str:
    return "unruled" if leaf == "edge-4" else "hub"


@dataclass
class _Dialled:
    """Where a leaf finds its hub."""

    port: int
    host: str = "127.0.0.1"

    def cut(self) -> None: ...

    def stall(self) -> None: ...

    def restore(self) -> None: ...


@asynccontextmanager
async def open_plant(directory: Path) -> AsyncIterator[Plant]:
    """A plant that ends with the context."""
    async with AsyncExitStack() as stack:
        links = {domain: directory / "keys" / domain for domain in (*LEAVES, *ROGUES, "edge-4")}
        users = tuple(
            LeafUser(domain, ensure_key(links[domain]), tenant=ROGUES.get(domain, ""))
            for domain in (*LEAVES, *ROGUES)
        )
        hub = make_hub(directory / "hub", users)
        mqtt = _mqtt(directory)
        unruled, unruled_leaf_port = _unruled(directory / "unruled", links["edge-4"])
        leaves = {
            domain: make_leaf(directory / domain, domain, ("normal",), _Dialled(port), links[domain])
            for domain, port in (*((one, hub.leaf_port) for one in LEAVES), ("edge-4", unruled_leaf_port))
        }
        servers = {"hub": _observed(hub.config, directory / "hub"), "unruled": unruled}
        for domain, leaf in leaves.items():
            heard = (HEARD.replace("{own}", domain),)
            config = replace(leaf.config, apps=(APP,), heard=heard, mqtt=mqtt if domain == "edge-1" else None)
            servers[domain] = _observed(config, leaf.directory)
        keys = {"hub": hub.keys, **{domain: leaf.keys for domain, leaf in leaves.items()}, "links": links}
        plant = Plant(servers, {}, keys, hub.leaf_port, address_of(mqtt.listen)[1])
        for name, server in servers.items():
            stack.push_async_callback(server.kill)
            await server.start()
            for account in _accounts(name):
                client = await nats.connect(server.url, user=account, password="observer", error_cb=_quiet)
                stack.push_async_callback(closed, client)
                plant.observers[Place(name, account)] = Observer(client)
        for observer in plant.observers.values():
            await observer.listen()
        await plant.settled()
        yield plant


def _accounts(server: str) -> tuple[str, ...]:
    if server == "unruled":
        return (ACCOUNT,)
    return (ACCOUNT, SYSTEM, TENANT) if server == "hub" else (ACCOUNT, SYSTEM)


def _observed(config: ServerConfig, directory: Path) -> ConfiguredServer:
    """What is rendered, and in each account a user named like it who may do everything."""
    private_directory(directory)
    rows, account = [], ""
    for row in render(config).splitlines(keepends=True):
        found = _ACCOUNT.match(row)
        account = found[1] if found else account
        rows.append(row)
        if row == "    users: [\n":
            rows.append(f"      {{ user: {account}, password: observer }}\n")
    if isinstance(config, LeafConfig):
        write_private(directory / LINK_INCLUDE, seed_line("nkey", config.link_key_file).encode())
        for name, user in config.mqtt.includes() if config.mqtt else ():
            write_private(directory / name, password_line(user.password_file).encode())
    return ConfiguredServer(directory, config.server_name, address_of(config.listen)[1], "".join(rows))


def _mqtt(directory: Path) -> MqttListener:
    password = directory / "keys" / "mqtt.password"
    private_directory(password.parent)
    create_private(password, MQTT_PASSWORD.encode())
    return MqttListener(listen=f"127.0.0.1:{free_port()}", users=(MqttUser(MQTT_USER, password),))


def _unruled(directory: Path, link: Path) -> tuple[ConfiguredServer, int]:
    port, leaf_port = free_port(), free_port()
    private_directory(directory)
    text = _UNRULED.format(port=port, leaf_port=leaf_port, directory=directory, key=ensure_key(link))
    return ConfiguredServer(directory, "unruled", port, text), leaf_port


async def _quiet(_: Exception) -> None:
    return
