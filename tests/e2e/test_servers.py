"""What the least permissions let through, and what they refuse: on real servers, as the real identities."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from agent.contract import ACCOUNT, FLEET_BUCKET, new_epoch
from agent.server.link_permissions import leaf_inbox
from agent.server.probe import Greeting, Stranger, greeting
from agent.server.values import address_of
from tests.harness.servers import ServerPair, api, ask, is_answered
from tests.harness.streams import (
    AGGREGATE,
    held,
    make_aggregate,
    make_commands,
    make_leaf_stream,
    make_mirror,
)
from tests.harness.wait import until

MESSAGES = 1500


async def fill(agent: Client, domain: str, size: int = 3000) -> None:
    """Store messages at the leaf: more, and more bytes, than flow control lets through unacknowledged."""
    stream = agent.jetstream(publish_async_max_pending=256)
    subject = f"tel.{domain}.normal._batch.test"
    acks = [await stream.publish_async(subject, b"x" * size) for _ in range(MESSAGES)]
    await asyncio.wait_for(asyncio.gather(*acks), 20)


async def test_a_backlog_drains_from_leaf_to_hub_through_the_least_permissions(servers: ServerPair) -> None:
    agent, registrar = await servers.leaf.connect("agent"), await servers.hub.connect("registrar")
    epoch = new_epoch()
    await make_leaf_stream(agent, "edge-1", epoch)
    await fill(agent, "edge-1")
    await make_aggregate(registrar, {"edge-1": epoch})
    info = await held(registrar, AGGREGATE, MESSAGES)
    assert info["state"]["messages"] == MESSAGES
    assert info["sources"][0]["seq"] == MESSAGES
    assert not servers.leaf.errors + servers.hub.errors


async def test_the_drain_goes_on_after_the_link_was_cut(servers: ServerPair) -> None:
    agent, registrar = await servers.leaf.connect("agent"), await servers.hub.connect("registrar")
    epoch = new_epoch()
    await make_leaf_stream(agent, "edge-1", epoch)
    await make_aggregate(registrar, {"edge-1": epoch})
    servers.leaf.proxy.cut()
    await servers.leaf.wait_linked(False)
    await fill(agent, "edge-1", size=100)
    assert (await api(registrar, f"STREAM.INFO.{AGGREGATE}"))["state"]["messages"] == 0
    servers.leaf.proxy.restore()
    await servers.leaf.wait_linked()
    assert (await held(registrar, AGGREGATE, MESSAGES))["state"]["messages"] == MESSAGES


async def test_commands_reach_the_mirror_of_the_leaf_and_are_read_there(servers: ServerPair) -> None:
    agent, registrar = await servers.leaf.connect("agent"), await servers.hub.connect("registrar")
    epoch = new_epoch()
    await make_commands(registrar, "edge-1", epoch)
    await make_mirror(agent, "edge-1", epoch)
    stream = registrar.jetstream(publish_async_max_pending=256)
    acks = [await stream.publish_async("cmd.edge-1.agent.note", b"x" * 3000) for _ in range(MESSAGES)]
    await asyncio.wait_for(asyncio.gather(*acks), 20)
    await held(agent, "COMMANDS", MESSAGES)
    first = await api(agent, "STREAM.MSG.GET.COMMANDS", {"next_by_subj": "cmd.edge-1.>", "seq": 1})
    assert first["message"]["subject"] == "cmd.edge-1.agent.note"
    await api(agent, "STREAM.DELETE.COMMANDS")
    assert not servers.leaf.errors + servers.hub.errors


async def test_an_announcement_is_answered_and_the_registrar_may_ask_the_leaf_for_its_state(
    servers: ServerPair,
) -> None:
    agent, registrar = await servers.leaf.connect("agent"), await servers.hub.connect("registrar")
    await make_leaf_stream(agent, "edge-1", new_epoch())

    async def answer(request: Msg) -> None:
        await request.respond(request.subject.encode())

    for service in ("announce", "cursor", "verify"):
        await registrar.subscribe(f"petiole.v1.{service}.*", cb=answer)
        await registrar.flush()
        subject = f"petiole.v1.{service}.edge-1"
        await until(partial(is_answered, agent, subject), "the registrar's interest has reached the leaf")
        assert (await agent.request(subject, b"{}")).data == subject.encode()
    inbox = f"{leaf_inbox('edge-1')}.1"
    answers = await registrar.subscribe(inbox)
    await registrar.publish("$JS.edge-1.API.STREAM.INFO.TEL_edge-1_normal", b"", reply=inbox)
    assert b"stream_info_response" in (await answers.next_msg(timeout=30)).data


async def test_the_registrar_keeps_the_fleet(servers: ServerPair) -> None:
    registrar = await servers.hub.connect("registrar")
    fleet = await registrar.jetstream().create_key_value(bucket=FLEET_BUCKET)
    await fleet.put("edge-1", b"{}")
    assert (await fleet.get("edge-1")).value == b"{}"
    await fleet.delete("edge-1")
    assert not servers.hub.errors


async def test_the_jobs_read_an_aggregate_and_say_what_they_have_committed(servers: ServerPair) -> None:
    jobs, registrar = await servers.hub.connect("jobs"), await servers.hub.connect("registrar")
    await make_aggregate(registrar, {})
    told = await registrar.subscribe("petiole.v1.committed.*")
    await registrar.flush()
    for prefix in ("$JS.API", "$JS.hub.API"):
        assert "error" not in await ask(jobs, f"{prefix}.STREAM.INFO.{AGGREGATE}")
        created = await ask(
            jobs,
            f"{prefix}.CONSUMER.CREATE.{AGGREGATE}.reader",
            {"stream_name": AGGREGATE, "config": {"name": "reader", "ack_policy": "none"}},
        )
        assert "error" not in created
        empty = await jobs.request(
            f"{prefix}.CONSUMER.MSG.NEXT.{AGGREGATE}.reader", b'{"batch":1,"no_wait":true}'
        )
        assert empty.headers is not None
        assert (await ask(jobs, f"{prefix}.CONSUMER.DELETE.{AGGREGATE}.reader"))["success"]
    fleet = await registrar.jetstream().create_key_value(bucket=FLEET_BUCKET, direct=True)
    await fleet.put("edge-1", b"{}")
    newest = f"DIRECT.GET.KV_{FLEET_BUCKET}.$KV.{FLEET_BUCKET}.edge-1"
    assert (await jobs.request(f"$JS.API.{newest}", b"")).data == b"{}"
    await jobs.publish(f"petiole.v1.committed.{AGGREGATE}", b"{}")
    assert (await told.next_msg(timeout=30)).data == b"{}"
    assert not servers.hub.errors


async def test_the_system_users_hear_the_link_come_and_go_and_learn_how_the_server_syncs(
    servers: ServerPair,
) -> None:
    leaf, hub = await servers.leaf.connect("agent_system"), await servers.hub.connect("registrar_system")
    events = f"$SYS.ACCOUNT.{ACCOUNT}.>"
    heard: list[str] = []

    async def hear(event: Msg) -> None:
        heard.append(event.subject.removeprefix(f"$SYS.ACCOUNT.{ACCOUNT}."))

    for client in (leaf, hub):
        await client.subscribe(events, cb=hear)
        await client.flush()
    servers.leaf.proxy.cut()
    await until(lambda: heard.count("DISCONNECT") == 2, "both sides hear that the link is lost")
    servers.leaf.proxy.restore()
    await until(lambda: heard.count("CONNECT") == 2, "both sides hear that the link is back")
    assert len((await ask(hub, "$SYS.REQ.SERVER.PING.LEAFZ"))["data"]["leafs"]) == 1
    server = (await ask(leaf, "$SYS.REQ.SERVER.PING.VARZ"))["data"]
    assert server["jetstream"]["config"]["sync_always"] is True
    assert (await ask(leaf, "$SYS.REQ.SERVER.PING.HEALTHZ"))["data"]["status"] == "ok"


async def test_what_a_leaf_has_acknowledged_outlives_the_kill_of_its_server(servers: ServerPair) -> None:
    agent = await servers.leaf.connect("agent")
    await make_leaf_stream(agent, "edge-1", new_epoch())
    await agent.jetstream().publish("tel.edge-1.normal.pump.bar", b"1")
    await servers.leaf.kill()
    await servers.leaf.start()
    again = await servers.leaf.connect("agent")
    assert (await held(again, "TEL_edge-1_normal", 1))["state"]["last_seq"] == 1


async def test_a_frozen_server_is_silent_until_it_is_let_go(servers: ServerPair) -> None:
    address = address_of(servers.hub.config.listen)

    async def silent() -> bool:
        return await greeting(address) == Stranger()

    servers.hub.pause()
    await until(silent, "the server is silent")
    servers.hub.resume()
    assert isinstance(await greeting(address), Greeting)


REFUSED = {
    "jobs": (
        "hub",
        f"$JS.API.STREAM.DELETE.{AGGREGATE}",
        f"$JS.API.STREAM.PURGE.{AGGREGATE}",
        f"$JS.API.STREAM.UPDATE.{AGGREGATE}",
        "$JS.API.STREAM.INFO.COMMANDS",
        "$JS.API.CONSUMER.CREATE.COMMANDS.spy",
        "$KV.petiole_fleet.edge-1",
        "$JS.API.STREAM.INFO.KV_petiole_fleet",
        "$JS.API.DIRECT.GET.KV_petiole_fleet.$KV.petiole_fleet.noted.TELEMETRY_0",
        "tel.edge-1.normal.pump.bar",
        "cmd.edge-1.agent.restart",
        "petiole.v1.announce.edge-1",
    ),
    "registrar": (
        "hub",
        f"$JS.API.STREAM.DELETE.{AGGREGATE}",
        "$JS.edge-1.API.STREAM.DELETE.TEL_edge-1_normal",
        "$JS.edge-1.API.STREAM.PURGE.TEL_edge-1_normal",
        "tel.edge-1.normal.pump.bar",
        "_INBOX_jobs.x",
    ),
    "registrar_system": ("hub", "$SYS.REQ.SERVER.PING.CONNZ", "$SYS.REQ.SERVER.PING.STATSZ"),
    "agent": (
        "leaf",
        "$JS.API.STREAM.DELETE.TEL_edge-1_normal",
        "$JS.API.STREAM.CREATE.OTHER",
        "$JS.hub.API.STREAM.INFO.TELEMETRY_0",
        "tel.edge-2.normal.pump.bar",
        "cmd.edge-1.agent.restart",
        "petiole.v1.announce.edge-2",
        "petiole.deliver.edge-1.normal.x",
    ),
    "agent_system": ("leaf", "$SYS.REQ.SERVER.PING.CONNZ", "$SYS.REQ.USER.INFO.x"),
    "device": (
        "leaf",
        "tel.edge-1.normal._batch.http",
        "tel.edge-1.normal._dead.http",
        "tel.edge-1.normal._ledger",
        "tel.edge-1.normal._clock",
        "tel.edge-1.other.pump.bar",
        "tel.edge-2.normal.pump.bar",
        "$JS.API.STREAM.PURGE.TEL_edge-1_normal",
        "$JS.API.STREAM.INFO.TEL_edge-1_normal",
        "cmd.edge-1.agent.restart",
        "petiole.v1.announce.edge-1",
    ),
}


@pytest.mark.parametrize("identity", REFUSED)
async def test_an_identity_is_refused_all_that_is_not_its_own(servers: ServerPair, identity: str) -> None:
    where, *subjects = REFUSED[identity]
    node = servers.hub if where == "hub" else servers.leaf
    client = await node.connect(identity)
    for subject in subjects:
        await client.publish(subject, b"{}")
    for foreign in (">", "_INBOX.>", "tel.>", "$JS.>", "_INBOX_edge-2.>", "_INBOX_hub.>"):
        await client.subscribe(foreign)
    await client.flush()
    await until(lambda: len(node.errors) == len(subjects) + 6, "every one of them is refused")
    refused = " ".join(str(error).lower() for error in node.errors)
    assert [subject for subject in subjects if f'publish to "{subject.lower()}"' not in refused] == []


async def test_a_device_stores_a_reading_of_its_own(servers: ServerPair) -> None:
    agent, device = await servers.leaf.connect("agent"), await servers.leaf.connect("device")
    await make_leaf_stream(agent, "edge-1", new_epoch())
    assert (await device.jetstream().publish("tel.edge-1.normal.pump.bar", b"4.2")).seq == 1


@pytest.mark.parametrize("side", ["hub", "leaf"])
async def test_who_has_no_key_or_the_key_of_a_link_is_refused_as_a_client(
    servers: ServerPair, side: str
) -> None:
    node = servers.hub if side == "hub" else servers.leaf
    link = str(servers.leaf.config.link_key_file)
    strangers: tuple[dict[str, Any], ...] = ({}, {"user": "acc", "password": "acc"}, {"nkeys_seed": link})
    for options in strangers:
        client = Client()
        try:
            with pytest.raises(nats.errors.Error, match=r"(?i)authorization violation"):
                await client.connect(node.url, allow_reconnect=False, **options)
        finally:
            await client.close()
