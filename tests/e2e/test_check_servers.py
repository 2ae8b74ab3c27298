"""`petiole check` against real servers with the permissions that are rendered: it sees what is wrong, it goes
when the remedy is applied, and looking changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from nats.aio.client import Client
from nats.aio.msg import Msg

from agent.cli.checks import Level, outcome
from agent.config import Config, Nats
from agent.config.keys import ensure_key
from agent.contract import Exit, announce_subject, new_epoch
from agent.demo.loopback import free_port
from agent.server import link_permissions
from agent.server.permissions import Permissions
from tests.harness.check_cases import bad, check, config_of, hub_config_of, of, pair
from tests.harness.servers import Leaf, ServerPair, api, open_server_pair
from tests.harness.streams import AGGREGATE, held, make_aggregate, make_commands, make_leaf_stream
from tests.harness.wait import until


@contextlib.asynccontextmanager
async def registrar_of(servers: ServerPair) -> AsyncIterator[Client]:
    """Somebody who hears announcements, as the registrar does."""
    client = await servers.hub.connect("registrar")

    async def hear(message: Msg) -> None:
        raise AssertionError(message.subject)

    await client.subscribe(announce_subject("*"), cb=hear)
    await client.flush()
    yield client


async def state_of(client: Client, *streams: str) -> list[Any]:
    """What these streams hold, and how many read them."""
    return [(await api(client, f"STREAM.INFO.{one}", {"subjects_filter": ">"}))["state"] for one in streams]


async def test_all_is_well_and_looking_at_it_changes_nothing(servers: ServerPair, tmp_path: Path) -> None:
    async with registrar_of(servers) as registrar:
        agent, epoch = await servers.leaf.connect("agent"), new_epoch()
        await make_leaf_stream(agent, "edge-1", epoch)
        await make_commands(registrar, "edge-1", epoch)
        await make_aggregate(registrar, {"edge-1": epoch})
        await agent.jetstream().publish("tel.edge-1.normal.pump.bar", b"1")
        await held(registrar, AGGREGATE, 1)
        before = [
            await state_of(agent, "TEL_edge-1_normal"),
            await state_of(registrar, AGGREGATE, "COMMANDS"),
        ]
        leaf = await check(config_of(servers.leaf, tmp_path / "state"))
        hub = await check(hub_config_of(servers.hub, tmp_path / "state"))
        assert (bad(leaf), bad(hub)) == ([], [])
        of(leaf, "has all 16 permissions of the link")
        of(leaf, "this clock and the hub's differ by less than")
        after = [await state_of(agent, "TEL_edge-1_normal"), await state_of(registrar, AGGREGATE, "COMMANDS")]
        assert before[0] == after[0]
        assert before[1] == after[1]
        assert (servers.hub.errors, servers.leaf.errors) == ([], [])


def without(*subjects: str) -> Callable[..., Permissions]:
    """The permissions of a leaf's link less these."""
    complete = link_permissions.leaf_link

    def lacking(*given: Any, **more: Any) -> Permissions:
        one = complete(*given, **more)
        return structs.replace(
            one,
            publish=tuple(subject for subject in one.publish if subject not in subjects),
            subscribe=tuple(subject for subject in one.subscribe if subject not in subjects),
        )

    return lacking


async def test_permissions_that_the_hub_lacks_are_named_and_gone_once_they_are_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = ("petiole.deliver.edge-1.normal.*", "$JS.FC.TEL_edge-1_normal.>", "petiole.v1.cursor.edge-1")
    # The doctor knows what is needed; only what is rendered lacks some.
    monkeypatch.setattr("agent.cli.check.link_permissions", _Rendered(link_permissions.leaf_link))
    with monkeypatch.context() as patch:
        patch.setattr("agent.server.render.link_permissions", _Rendered(without(*missing)))
        async with open_server_pair(tmp_path, "edge-1") as servers, registrar_of(servers):
            found = await check(config_of(servers.leaf, tmp_path / "state"))
            lines = [re.search('add "(.+)" to permissions', one.remedy) for one in found]
            assert sorted(line[1] for line in lines if line) == sorted(missing)
            assert len(bad(found)) == len(missing)
            assert outcome(found) is Exit.FAILED
            patch.undo()
            await servers.hub.stop()
            await servers.hub.start()
            await servers.leaf.wait_linked()
            async with registrar_of(servers):
                assert bad(await check(config_of(servers.leaf, tmp_path / "state"))) == []


class _Rendered:
    """The module of the permissions of links with another function for the link."""

    def __init__(self, leaf_link: Callable[..., Permissions]) -> None:
        self.leaf_link = leaf_link

    def __getattr__(self, name: str) -> Any:
        return getattr(link_permissions, name)


async def test_a_permission_that_the_agent_lacks_is_named_and_gone_after_a_reload(
    servers: ServerPair, tmp_path: Path
) -> None:
    configuration = servers.leaf.directory / "nats-server.conf"
    text = configuration.read_text()
    entry = next(line for line in text.splitlines(True) if "STREAM.PURGE.TEL_edge-1_normal" in line)
    pid = servers.leaf.server.pid
    assert pid is not None
    configuration.write_text(text.replace(entry, "", 1))
    os.kill(pid, signal.SIGHUP)
    config = config_of(servers.leaf, tmp_path / "state")
    async with registrar_of(servers):
        await _until_bad(
            config,
            ["the agent's user may not publish $JS.API.STREAM.PURGE.TEL_edge-1_normal on the local server"],
        )
        found = await check(config)
        remedy = of(found, "STREAM.PURGE").remedy
        assert 'add "$JS.API.STREAM.PURGE.TEL_edge-1_normal" to permissions.publish.allow' in remedy
        configuration.write_text(text)
        os.kill(pid, signal.SIGHUP)
        await _until_bad(config, [])


async def test_a_hub_of_several_machines_needs_to_let_another_server_lead(
    servers: ServerPair, tmp_path: Path
) -> None:
    config = hub_config_of(servers.hub, tmp_path / "state")
    config.nats.cluster.routes.append("nats-route://127.0.0.1:6222")
    named = [
        f"$JS.API.STREAM.LEADER.STEPDOWN.{stream}" for stream in (AGGREGATE, "COMMANDS", "KV_petiole_fleet")
    ]
    lacking = [f"the agent's user may not publish {subject} on the local server" for subject in named]
    assert [one for one in bad(await check(config)) if one.startswith("the agent's user")] == lacking
    configuration = servers.hub.directory / "nats-server.conf"
    text = configuration.read_text()
    entry = next(line for line in text.splitlines(True) if f"STREAM.PURGE.{AGGREGATE}" in line)
    added = "".join(entry.replace(f"$JS.API.STREAM.PURGE.{AGGREGATE}", subject) for subject in named)
    configuration.write_text(text.replace(entry, entry + added, 1))
    assert servers.hub.server.pid is not None
    os.kill(servers.hub.server.pid, signal.SIGHUP)
    try:
        await _until_bad(config, [])
    finally:
        configuration.write_text(text)
        os.kill(servers.hub.server.pid, signal.SIGHUP)


async def _until_bad(config: Config, expected: list[str]) -> None:
    """Return when exactly this is bad; nobody tells when a reload is done."""

    async def reached() -> bool:
        return bad(await check(config)) == expected

    await until(reached, f"bad is {expected}")


async def test_a_hub_that_does_not_know_the_leaf_or_its_class_says_so(tmp_path: Path) -> None:
    async with open_server_pair(tmp_path, "edge-1") as servers, registrar_of(servers):
        config = config_of(servers.leaf, tmp_path / "state")
        config.class_.append(type(config.class_[0])("bulk"))
        found = await check(config)
        assert 'add "bulk" to classes' in of(found, "does not let class bulk").remedy
        config = config_of(servers.leaf, tmp_path / "state")
        config.nats.link_seed_file = tmp_path / "stranger.nk"
        ensure_key(config.nats.link_seed_file)
        found = await check(config)
        assert "petiole enrol" in of(found, "does not know this leaf's key").remedy


async def test_the_hubs_port_for_clients_is_named_as_that(servers: ServerPair, tmp_path: Path) -> None:
    config = config_of(servers.leaf, tmp_path / "state")
    config.nats.hub_urls = [f"nats-leaf://127.0.0.1:{servers.hub.port}"]
    found = await check(config)
    assert "leaf_listen" in of(found, "is the port for clients of the hub's server").remedy
    assert not any("does not know this leaf's key" in one for one in bad(found))


async def test_another_server_on_the_agents_port_is_told_before_its_first_start(
    servers: ServerPair, tmp_path: Path
) -> None:
    listen = config_of(servers.leaf, tmp_path / "state").nats.listen
    found = await check(Config(domain="edge-1", state_dir=tmp_path / "new", nats=Nats(listen=listen)))
    told = of(found, "is not there yet")
    assert "is not the server of this agent" in told.sentence
    assert told.remedy.startswith("end that server or change nats.listen")


async def test_the_hub_sees_two_servers_of_one_domain(tmp_path: Path) -> None:
    async with open_server_pair(tmp_path, "edge-1") as servers:
        config = hub_config_of(servers.hub, tmp_path / "state")
        assert bad(await check(config)) == []
        copy = structs.replace(servers.leaf.config, server_name="edge-1-copy", store_dir=tmp_path / "copy")
        async with _second(copy, tmp_path / "second", servers):

            async def found() -> bool:
                """An answer that comes late, over two links, is not waited for by a check."""
                said = await check(config)
                words = "2 servers answer for domain edge-1"
                return any(
                    words in one.sentence and outcome(said) is one.exit is Exit.CONFLICT for one in said
                )

            await until(found, "two servers of one domain are seen")
        assert bad(await check(config)) == []


@contextlib.asynccontextmanager
async def _second(config: Any, directory: Path, servers: ServerPair) -> AsyncIterator[None]:
    config = structs.replace(config, listen=f"127.0.0.1:{free_port()}")
    first = servers.leaf
    leaf = Leaf(config, directory, first.keys, {**first._inboxes}, first.proxy)
    await leaf.start()
    await leaf.wait_linked()
    yield
    await leaf.close()


async def test_a_link_that_is_cut_is_told_although_the_hub_can_be_dialled(
    servers: ServerPair, tmp_path: Path
) -> None:
    async with registrar_of(servers):
        config = config_of(
            servers.leaf, tmp_path / "state", (f"nats-leaf://127.0.0.1:{servers.hub.leaf_port}",)
        )
        of(await check(config), "the local server is linked to hub-test")
        servers.leaf.proxy.cut()
        await servers.leaf.wait_linked(False)
        found = await check(config)
        assert bad(found) == ["the local server has no link to the hub"]
        assert outcome(found) is Exit.UNREACHABLE


async def test_a_hung_server_and_a_hung_hub_are_told_as_that(servers: ServerPair, tmp_path: Path) -> None:
    config = config_of(servers.leaf, tmp_path / "state")
    # A server that is stopped may have greeted before it stands still.
    for node, group in ((servers.hub, "link"), (servers.leaf, "server")):
        node.pause()
        try:
            found = await check(config)
        finally:
            node.resume()
        assert outcome(found) is Exit.UNREACHABLE
        assert any("says nothing" in one.sentence for one in found if one.group == group), found


NONSENSE = (
    b"SSH-2.0-OpenSSH_9.2\r\n",
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    b"INFO {}\r\n",
    b"INFO [1]\r\n",
    b"\x00" * 200,
    b"x" * 2_000_000,
    b'INFO {"version": "2.15.1"}\r\nINFO nonsense\r\n',
    b"",
)


@pytest.mark.parametrize("said", NONSENSE)
async def test_nonsense_instead_of_a_server_or_a_hub_is_told_and_ends(said: bytes, tmp_path: Path) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        seed = tmp_path / "link.nk"
        ensure_key(seed)
        nats = Nats(
            server="external",
            listen=f"127.0.0.1:{port}",
            hub_urls=[f"nats-leaf://user:secret@127.0.0.1:{port}"],
            link_seed_file=seed,
            seed_file=seed,
            system_seed_file=seed,
        )
        found = await check(Config(domain="edge-1", state_dir=tmp_path, nats=nats))
    told = bad(found)
    assert any(one.startswith("the local server at") or "agent's user" in one for one in told), told
    assert any("nats-leaf://127.0.0.1" in one for one in told), told
    assert not any("secret" in one for one in told)


async def test_a_seed_that_cannot_be_read_is_told_with_what_to_do(
    servers: ServerPair, tmp_path: Path
) -> None:
    config = config_of(servers.leaf, tmp_path / "state")
    config.nats.seed_file = tmp_path / "bad.nk"
    config.nats.seed_file.write_text("nonsense")
    config.nats.seed_file.chmod(0o600)
    found = await check(config)
    assert "does not hold the seed" in of(found, "the agent's user is not let in").sentence
    config.nats.seed_file.chmod(0o644)
    found = await check(config)
    assert of(found, "the agent's user is not let in").remedy.startswith("run: chmod 600")
    assert of(found, "may be read by others").level is Level.FAILURE
    ensure_key(tmp_path / "unknown.nk")
    config.nats.seed_file = tmp_path / "unknown.nk"
    assert "authorization violation" in of(await check(config), "the agent's user is not").sentence.lower()


async def test_a_hub_that_is_too_old_is_told_by_its_fault_and_asked_no_more(
    tmp_path: Path, old_server: tuple[str, Path]
) -> None:
    version, binary = old_server
    async with pair(tmp_path) as one:
        await one.start_hub(binary=binary)
        found = await check(one.config)
        words = of(
            found, f"the hub at {one.config.nats.hub_urls[0].replace('leaf:leaf@', '')} is nats-server"
        )
        assert (version in words.sentence, words.level) == (True, Level.FAILURE)
        assert not any(one.group == "permissions" for one in found)
        # What the server logs once it has let a leaf in.
        assert "JetStream using domains" not in (tmp_path / "hub" / "out").read_text()
