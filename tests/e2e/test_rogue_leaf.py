"""What the owner of one leaf, with its link key and a server without any rule, can do to the others; and what
the owner of a hub can do to the stream of an honest leaf."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import nats
import pytest
import pytest_asyncio
from nats.aio.client import Client
from nats.aio.msg import Msg

from agent.base.files import private_directory, write_private
from agent.base.nats_server import find_binary
from agent.config.keys import ensure_key
from agent.contract import (
    HOME,
    aggregate,
    announce_subject,
    api_prefix,
    cell_api,
    deliver_subject,
    new_epoch,
)
from agent.demo.loopback import LoopbackProxy, free_port
from agent.server.child import Watched, reap, spawn
from tests.harness.configured import rogue_server
from tests.harness.servers import ServerPair, api, ask, is_answered, make_leaf, open_server_pair
from tests.harness.streams import (
    AGGREGATE,
    held,
    make_aggregate,
    make_commands,
    make_leaf_stream,
    make_mirror,
)
from tests.harness.wait import until

FOREIGN = (
    "petiole.v1.announce.edge-2",
    "petiole.v1.cursor.edge-2",
    "petiole.v1.verify.edge-2",
    f"petiole.v1.committed.{AGGREGATE}",
    *(
        f"$JS.hub.API.{verb}.{stream}"
        for verb in ("STREAM.INFO", "STREAM.DELETE", "STREAM.PURGE", "STREAM.MSG.GET", "DIRECT.GET")
        for stream in (AGGREGATE, "COMMANDS")
    ),
    f"$JS.hub.API.CONSUMER.CREATE.{AGGREGATE}.spy",
    "$JS.hub.API.CONSUMER.CREATE.COMMANDS.spy",
    "$JS.hub.API.CONSUMER.RESET.COMMANDS.cmd-edge-2",
    "$JS.hub.API.CONSUMER.DELETE.COMMANDS.cmd-edge-2",
    "$JS.hub.API.INFO",
    "$JS.hub.API.STREAM.CREATE.MINE",
    "$JS.hub.API.STREAM.NAMES",
    "$JS.hub.API.STREAM.LIST",
    "$JS.hub.API.STREAM.SNAPSHOT.COMMANDS",
    f"$JS.hub.API.STREAM.UPDATE.{AGGREGATE}",
    f"$JS.hub.API.STREAM.MSG.DELETE.{AGGREGATE}",
    f"$JS.hub.API.CONSUMER.NAMES.{AGGREGATE}",
    "$JS.hub.API.STREAM.DELETE.KV_petiole_fleet",
    "$JS.hub.API.STREAM.MSG.GET.KV_petiole_fleet",
    "JS.hub.API.CONSUMER.RESET.COMMANDS.cmd-edge-2",
    "JS.hub.API.STREAM.DELETE.COMMANDS",
    "$JS.edge-2.API.STREAM.DELETE.TEL_edge-2_normal",
    "$JS.edge-2.API.STREAM.MSG.GET.TEL_edge-2_normal",
    "$JS.edge-2.API.STREAM.UPDATE.TEL_edge-2_normal",
    "$JS.edge-2.API.CONSUMER.DELETE.TEL_edge-2_normal.hub-{epoch}",
    "$JS.edge-2.API.CONSUMER.PAUSE.TEL_edge-2_normal.hub-{epoch}",
    "$JS.edge-2.API.CONSUMER.RESET.TEL_edge-2_normal.hub-{epoch}",
    "$JS.FC.COMMANDS.cmd-edge-2.x",
    "$JS.FC.TEL_edge-2_normal.hub-{epoch}.x",
    "$JS.ACK.COMMANDS.cmd-edge-2.1.1.1.1.0",
    "$JS.edge-2.API.STREAM.INFO.TEL_edge-2_normal",
    "$JS.edge-2.API.STREAM.PURGE.TEL_edge-2_normal",
    "petiole.deliver.edge-2.normal.{epoch}",
    "petiole.command.edge-2.{epoch}",
    "tel.edge-2.normal.pump.bar",
    "cmd.edge-1.agent.restart",
    "cmd.edge-2.agent.restart",
    "$KV.petiole_fleet.edge-2",
    "$SYS.REQ.SERVER.PING",
    "$SYS.REQ.SERVER.x.KICK",
    "$SYS.REQ.CLAIMS.UPDATE",
)


@dataclass
class Rogue:
    """A leaf's owner on a server of their own, and the honest rest of the fleet."""

    owner: Client
    registrar: Client
    jobs: Client
    honest: Client
    epoch: str
    tenants: dict[str, str]
    aggregate: str
    announced: list[str] = field(default_factory=list)


TENANTS = {
    "one account": {},
    "one tenant": {"edge-1": "acme", "edge-2": "acme"},
    "two tenants": {"edge-1": "acme", "edge-2": "globex"},
    "one cell": {},
}


@pytest_asyncio.fixture(params=TENANTS)
async def rogue(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rogue]:
    """`edge-1` in the hands of a rogue, `edge-2` honest, the hub's registrar answering."""
    tenants, cell = TENANTS[request.param], "1" if request.param == "one cell" else HOME
    async with (
        open_server_pair(tmp_path, "edge-1", "edge-2", tenants=tenants, cell=cell) as servers,
        _rogue_in(servers, tmp_path, tenants, cell) as one,
    ):
        yield one


@asynccontextmanager
async def _rogue_in(
    servers: ServerPair, tmp_path: Path, tenants: dict[str, str], cell: str
) -> AsyncIterator[Rogue]:
    leaf, other = servers.leaves.values()
    await leaf.stop()
    registrar = await servers.hub.connect(f"registrar_{cell}" if cell else "registrar")
    honest = await other.connect("agent")
    epoch = new_epoch()
    await make_leaf_stream(honest, "edge-2", epoch)
    await make_commands(registrar, "edge-2", epoch)
    async with rogue_server(leaf, tmp_path / "rogue") as owner:
        one = Rogue(
            owner, registrar, await servers.hub.connect("jobs"), honest, epoch, tenants, aggregate(0, cell)
        )

        async def answer(request: Msg) -> None:
            one.announced.append(request.subject)
            await request.respond(b"{}")

        for subject in (
            "petiole.v1.announce.*",
            "petiole.v1.cursor.*",
            "petiole.v1.verify.*",
            "petiole.v1.committed.*",
        ):
            await registrar.subscribe(subject, cb=answer)
        await until(lambda: is_answered(owner, announce_subject("edge-1")), "the rogue has its link")
        yield one


async def test_nothing_foreign_answers_to_a_rogue_or_takes_in_what_it_publishes(rogue: Rogue) -> None:
    await make_aggregate(rogue.registrar, {"edge-2": rogue.epoch}, rogue.aggregate)
    foreign = [subject.replace(AGGREGATE, rogue.aggregate) for subject in FOREIGN]
    if rogue.aggregate != AGGREGATE:
        foreign.append(f"{cell_api(rogue.aggregate)}.STREAM.MSG.GET.{rogue.aggregate}")
    subjects = [subject.format(epoch=rogue.epoch) for subject in foreign]
    answered = await asyncio.gather(*(is_answered(rogue.owner, subject) for subject in subjects))
    assert [subject for subject, yes in zip(subjects, answered, strict=True) if yes] == []
    assert set(rogue.announced) == {announce_subject("edge-1")}
    for client, stream in (
        (rogue.registrar, rogue.aggregate),
        (rogue.registrar, "COMMANDS"),
        (rogue.honest, "TEL_edge-2_normal"),
    ):
        assert (await api(client, f"STREAM.INFO.{stream}"))["state"]["messages"] == 0


async def test_a_rogue_hears_nothing_of_the_readings_and_commands_of_others(rogue: Rogue) -> None:
    heard: list[Msg] = []

    async def hear(message: Msg) -> None:
        heard.append(message)

    for subject in (
        ">",
        "tel.>",
        "cmd.>",
        "petiole.>",
        "$JS.>",
        "_INBOX_edge-2.>",
        "_INBOX_registrar.>",
        "_INBOX_jobs.>",
        "_R_.>",
    ):
        await rogue.owner.subscribe(subject, cb=hear)
    await rogue.owner.flush()
    await make_mirror(rogue.honest, "edge-2", rogue.epoch, tenant=bool(rogue.tenants))
    await make_aggregate(rogue.registrar, {"edge-2": rogue.epoch}, rogue.aggregate)
    await rogue.honest.jetstream().publish("tel.edge-2.normal.pump.bar", b"secret")
    await rogue.registrar.jetstream().publish("cmd.edge-2.agent.note", b"secret")
    await held(rogue.registrar, rogue.aggregate, 1)
    await held(rogue.honest, "COMMANDS", 1)
    read = f"{cell_api(rogue.aggregate)}.STREAM.MSG.GET.{rogue.aggregate}"
    assert (await ask(rogue.jobs, read, {"seq": 1}))["message"]
    await until(partial(is_answered, rogue.owner, announce_subject("edge-1")), "the owner is answered")
    if rogue.tenants.get("edge-1") == rogue.tenants.get("edge-2"):
        # Answers to RESET reach every leaf of an account: a consumer's configuration, no data.
        heard = [message for message in heard if not message.subject.startswith("$JSC.R.")]
    assert [message for message in heard if "edge-2" in message.subject or b"edge-2" in message.data] == []
    assert not any(b"secret" in message.data for message in heard)


async def test_readings_forged_in_the_name_of_another_arrive_in_the_name_of_the_forger(rogue: Rogue) -> None:
    epoch = new_epoch()
    await make_leaf_stream(rogue.owner, "edge-1", epoch)
    config = (await api(rogue.owner, "STREAM.INFO.TEL_edge-1_normal"))["config"]
    subjects = [*config["subjects"], "tel.edge-2.>"]
    await api(rogue.owner, "STREAM.UPDATE.TEL_edge-1_normal", {**config, "subjects": subjects})
    await rogue.owner.jetstream().publish("tel.edge-2.normal.pump.bar", b"1")
    await make_aggregate(rogue.registrar, {"edge-1": epoch}, rogue.aggregate)
    await held(rogue.registrar, rogue.aggregate, 1)
    stored = await api(rogue.registrar, f"STREAM.MSG.GET.{rogue.aggregate}", {"seq": 1})
    assert stored["message"]["subject"] == "tel.edge-1.normal.pump.bar"


OPEN = """
server_name: rogue
listen: "127.0.0.1:{port}"
jetstream {{ domain: hub, store_dir: "{directory}/store", max_file_store: 100MB }}
leafnodes {{ listen: "127.0.0.1:{leaf_port}" }}
accounts {{ PETIOLE {{ jetstream: enabled, users: [ {{ user: o, password: o }}, {{ nkey: {key} }} ] }} }}
"""
STREAM = "TEL_edge-1_normal"
FORBIDDEN = (
    *(f"STREAM.{verb}.{STREAM}" for verb in ("DELETE", "PURGE", "UPDATE", "SNAPSHOT", "MSG.DELETE")),
    *(f"STREAM.{verb}.NEW" for verb in ("CREATE", "RESTORE")),
    *(f"STREAM.{verb}" for verb in ("NAMES", "LIST")),
    "INFO",
    f"DIRECT.GET.{STREAM}",
    f"CONSUMER.DURABLE.CREATE.{STREAM}.mine",
    *(f"CONSUMER.{verb}.{STREAM}" for verb in ("NAMES", "LIST")),
    *(f"CONSUMER.{verb}.{STREAM}.hub-{{epoch}}" for verb in ("DELETE", "PAUSE", "MSG.NEXT", "UNPIN")),
)


async def test_the_owner_of_the_hub_changes_nothing_of_a_leafs_stream_and_puts_nothing_into_it(
    tmp_path: Path,
) -> None:
    directory, port, leaf_port = private_directory(tmp_path / "rogue"), free_port(), free_port()
    proxy = LoopbackProxy(leaf_port)
    link = tmp_path / "edge-1" / "keys" / "link"
    text = OPEN.format(port=port, leaf_port=leaf_port, directory=directory, key=ensure_key(link))
    write_private(directory / "rogue.conf", text.encode())
    process = Watched(
        spawn([str(find_binary()), "-c", str(directory / "rogue.conf")], directory, directory / "out")
    )
    await proxy.start()
    leaf = make_leaf(tmp_path / "edge-1", "edge-1", ("normal",), proxy, link)
    try:
        await leaf.start()
        await leaf.wait_linked()
        agent, epoch = await leaf.connect("agent"), new_epoch()
        await make_leaf_stream(agent, "edge-1", epoch)
        await agent.jetstream().publish("tel.edge-1.normal.pump.bar", b"1")
        owner = await nats.connect(f"nats://o:o@127.0.0.1:{port}")
        prefix = api_prefix("edge-1")
        await until(lambda: is_answered(owner, f"{prefix}.STREAM.INFO.{STREAM}"), "the hub may look")
        subjects = [f"{prefix}.{one.format(epoch=epoch)}" for one in FORBIDDEN]
        answered = await asyncio.gather(*(is_answered(owner, one) for one in subjects))
        assert [one for one, yes in zip(subjects, answered, strict=True) if yes] == []
        for subject in ("tel.edge-1.normal.pump.bar", "tel.edge-1.normal._batch.http", "$MQTT.msgs.x"):
            await owner.publish(subject, b"forged")
        # What it may do is to read, as a source does; by then the forged ones would have been taken in.
        heard = await owner.subscribe(deliver_subject("edge-1", "normal", epoch))
        answer = await ask(owner, f"{prefix}.CONSUMER.RESET.{STREAM}.hub-{epoch}", {})
        assert "error" not in answer
        assert (await heard.next_msg(timeout=30)).data == b"1"
        assert (await api(agent, f"STREAM.INFO.{STREAM}"))["state"]["messages"] == 1
        await owner.close()
    finally:
        await leaf.close()
        await proxy.stop()
        process.signal(signal.SIGKILL)
        await process.ended.wait()
        reap(process.pid)
