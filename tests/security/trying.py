"""Tries every subject in the name of every identity, and notes what got through: where what it sends is
heard, and from where what others send reaches it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Literal

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from agent.contract import ACCOUNT, inbox_prefix
from tests.harness.configured import closed
from tests.harness.mqtt_client import device
from tests.harness.wait import until
from tests.security.catalogue import Subject
from tests.security.plant import MQTT_PASSWORD, MQTT_USER, TENANT, Place, Plant, passed
from tests.security.raw_link import raw_link

ALL = (">", "*.>", "$SYS.>", "$JS.>", "$KV.>", "_INBOX.>", "tel.>", "cmd.>", "petiole.>", "readings.>")
MQTT_ALL = ("#", "+/#", "readings/#", "tel/#", "cmd/#", "petiole/#", "_INBOX_device/#", "$JS/#", "$MQTT/#")


@dataclass(frozen=True, slots=True)
class Identity:
    """Who tries: `own` is their domain, `other` one that is not theirs, `home` the place where they are,
    `key` the file of that server's keys that they show, and `inbox` whose answers they hear."""

    name: str
    kind: Literal["key", "mqtt", "link", "owner"]
    own: str
    other: str
    home: Place
    key: str = ""
    inbox: str = ""


IDENTITIES = (
    Identity("agent", "key", "edge-1", "edge-2", Place("edge-1", ACCOUNT), "agent", "edge-1"),
    Identity("device", "key", "edge-1", "edge-2", Place("edge-1", ACCOUNT), "device", "device"),
    Identity("MQTT user", "mqtt", "edge-1", "edge-2", Place("edge-1", ACCOUNT)),
    Identity("agent, system", "key", "edge-1", "edge-2", Place("edge-1", "SYS"), "agent_system", "edge-1"),
    Identity("registrar", "key", "hub", "edge-1", Place("hub", ACCOUNT), "registrar", "registrar"),
    Identity("jobs", "key", "hub", "edge-1", Place("hub", ACCOUNT), "jobs", "jobs"),
    Identity(
        "registrar, system", "key", "hub", "edge-1", Place("hub", "SYS"), "registrar_system", "registrar"
    ),
    Identity("link", "link", "edge-3", "edge-1", Place("edge-3", ACCOUNT)),
    Identity("tenant's link", "link", "acme-1", "edge-1", Place("acme-1", TENANT)),
    Identity("owner of the hub", "owner", "hub", "edge-4", Place("unruled", ACCOUNT)),
)


@dataclass
class Found:
    """What got through for one identity, by template: where it was heard, and from where it came."""

    sent: dict[str, set[Place]] = field(default_factory=dict)
    heard: dict[str, set[Place]] = field(default_factory=dict)


async def found(plant: Plant, identity: Identity, subjects: Iterable[Subject]) -> Found:
    """Try all of `subjects`."""
    ways = {one.template: one.of(identity.own, identity.other) for one in subjects if _matters(identity, one)}
    result = Found()
    marks = {f"{identity.name}|{template}".encode(): template for template in ways}
    await _send(plant, identity, {ways[template]: mark for mark, template in marks.items()})
    await plant.settled()
    for place, observer in plant.observers.items():
        for mark in observer.heard & marks.keys():
            result.sent.setdefault(marks[mark], set()).add(place)
    said = {
        f"{place.server}|{place.account}|{identity.name}|{template}".encode(): (place, template)
        for place in plant.observers
        for template in ways
    }
    for mark in await _hear(plant, identity, ways, said):
        place, template = said[mark]
        result.heard.setdefault(template, set()).add(place)
    return result


def _matters(identity: Identity, one: Subject) -> bool:
    """Through MQTT JetStream's API has no name; what the owner of a hub asks that hub is their own affair."""
    if identity.kind == "mqtt":
        return not one.what
    return (
        identity.kind != "owner" or not one.what or one.template.startswith(("$JS.API.", "$JS.{other}.API."))
    )


async def _send(plant: Plant, identity: Identity, messages: dict[str, bytes]) -> None:
    if identity.kind == "link":
        await _send_raw(plant, identity, messages)
    elif identity.kind == "mqtt":
        await asyncio.to_thread(_send_mqtt, plant, messages)
    else:
        async with AsyncExitStack() as stack:
            client = await _client(plant, identity, stack)
            for subject, mark in messages.items():
                await client.publish(subject, mark)
            await passed(client)


async def _send_raw(plant: Plant, identity: Identity, messages: dict[str, bytes]) -> None:
    """The hub hangs up after each that it refuses."""
    left = list(messages.items())
    while left:
        async with raw_link(plant.hub_leaf_port, identity.own, plant.keys["links"][identity.own]) as link:
            while left and not link.over:
                link.publish(*left.pop())
                await link.flush()


def _send_mqtt(plant: Plant, messages: dict[str, bytes]) -> None:
    left = [(subject.replace(".", "/"), mark) for subject, mark in messages.items() if ">" not in subject]
    while left:
        with device(plant.mqtt_port, MQTT_USER, MQTT_PASSWORD, "tries") as one:
            assert one.refused is None
            while left and one.publish(*left[-1], qos=0):
                left.pop()
            if left and not one.publish("readings/normal/pump/alive", b"alive", qos=1):
                left.pop()  # the server hung up at this one


async def _hear(
    plant: Plant, identity: Identity, ways: dict[str, str], said: dict[bytes, tuple[Place, str]]
) -> set[bytes]:
    """Which of these marks reach the identity, which listens to all that it may."""
    heard: set[bytes] = set()
    async with AsyncExitStack() as stack:
        if identity.kind == "mqtt":
            granted = await asyncio.to_thread(_mqtt_granted, plant)
            assert granted == []
            return set()
        if identity.kind == "link":
            seed = plant.keys["links"][identity.own]
            link = await stack.enter_async_context(raw_link(plant.hub_leaf_port, identity.own, seed))
            # The hub lets a link listen to what holds a wildcard, and sends of it what is allowed.
            link.subscribe(ALL)
            await link.flush()
            heard = link.heard
        else:
            client = await _client(plant, identity, stack)

            async def note(message: Msg) -> None:
                heard.add(message.data)

            taken = [await client.subscribe(one, cb=note) for one in dict.fromkeys([*ALL, *ways.values()])]
            await passed(client)
        for mark, (place, template) in said.items():
            await plant.observers[place].client.publish(ways[template], mark)
        await plant.settled()
        if identity.kind == "link":
            await link.flush()
            assert not link.over, link.refused
        else:
            await passed(client)
            await until(lambda: not any(one.pending_msgs for one in taken), "all is noted", 60)
        return heard & said.keys()


def _mqtt_granted(plant: Plant) -> list[str]:
    found = []
    with device(plant.mqtt_port, MQTT_USER, MQTT_PASSWORD, "listens") as one:
        for topic in MQTT_ALL:
            found += [topic] if one.subscribe(topic) != [128] else []
    return found


async def _client(plant: Plant, identity: Identity, stack: AsyncExitStack) -> Client:
    url = plant.servers[identity.home.server].url

    async def quiet(_: Exception) -> None:
        return

    shown = (
        {"user": ACCOUNT, "password": "observer"}
        if identity.kind == "owner"
        else {"nkeys_seed": str(plant.keys[identity.home.server][identity.key])}
    )
    prefix = inbox_prefix(identity.inbox) if identity.inbox else "_INBOX"
    client = await nats.connect(url, inbox_prefix=prefix, error_cb=quiet, **shown)
    stack.push_async_callback(closed, client)
    return client
