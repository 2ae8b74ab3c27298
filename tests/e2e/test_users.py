"""A program with an account of its own on a rendered site: every step of NATS's document on JetStream and
leaf nodes, by that program's key alone, and nothing of Petiole's streams but what it may read."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nats
import nats.errors
import nats.js.errors
import pytest
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, ExternalStream, StreamConfig, StreamSource
from typer.testing import CliRunner

from agent.cli.main import app
from agent.config.keys import make_key
from agent.contract import USER_API, leaf_stream, user_consumer
from agent.demo import plan
from agent.demo.loopback import free_port
from agent.jetstream.connection import EXPECTED, connected
from tests.harness.agent_process import Agent
from tests.harness.wait import WAIT_SECONDS, until

USER = "app"
TELEMETRY = leaf_stream("edge-1", "normal")
READING = b'{"device":"pump","metric":"bar","value":%d}'


@dataclass
class Site:
    """A hub and a leaf with embedded servers, and the seeds of the programs that they let in."""

    leaf: Agent
    hub: Agent
    seeds: Path

    @asynccontextmanager
    async def program(self, of: Agent, name: str = USER) -> AsyncIterator[Client]:
        """A connection of a program that has nothing but its own key."""
        client = await nats.connect(
            of.member.nats_url, nkeys_seed=str(self.seeds / f"{name}.nk"), allow_reconnect=False
        )
        try:
            yield client
        finally:
            await client.close()


def _user(key: str, reads: str, *, name: str = USER, linked: bool = False) -> str:
    more = "linked = true\n" if linked else ""
    return f'\n[[user]]\nname = "{name}"\nkey = "{key}"\nreads = ["{reads}"]\nmax_bytes = "64MiB"\n{more}'


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    seeds = tmp_path / "seeds"
    key, other = make_key(seeds / f"{USER}.nk"), make_key(seeds / "other.nk")
    leaf_port = free_port()
    member = plan.member(tmp_path, "edge-1")
    users = _user(key, "normal", linked=True) + _user(other, "normal", name="other")
    leaf = Agent(member, plan.leaf_toml(member, leaf_port) + users)
    table = CliRunner().invoke(app, ["enrol", "-c", str(member.config)]).stdout
    assert f'users = {{ {USER} = "U' in table
    member = plan.member(tmp_path, "hub")
    hub = Agent(member, plan.hub_toml(member, leaf_port, [table]) + _user(key, "TELEMETRY_0"))
    found = Site(leaf, hub, seeds)
    try:
        hub.start()
        leaf.start()
        yield found
    finally:
        for agent in (leaf, hub):
            agent.close()


async def _held(js: JetStreamContext, stream: str) -> int:
    try:
        return int((await js.stream_info(stream)).state.messages)
    except (nats.js.errors.Error, nats.errors.Error):
        return -1


async def test_a_program_has_an_account_of_its_own_and_reads_what_it_may_until_its_key_is_revoked(
    site: Site,
) -> None:
    await _every_step_of_the_document_runs(site)
    await _nothing_of_petioles_is_reached_but_what_may_be_read(site)
    await _the_readings_are_read_and_streams_made_while_the_hub_is_gone(site)
    await _a_key_that_is_revoked_is_shut_out_at_once(site)
    await _the_link_of_the_account_ends_with_that_of_its_leaf(site)


async def _every_step_of_the_document_runs(site: Site) -> None:
    async with site.program(site.hub) as at_hub, site.program(site.leaf) as at_leaf:
        hub, leaf = at_hub.jetstream(), at_leaf.jetstream()
        far = at_hub.jetstream(domain="edge-1")
        await until(lambda: _answers(far), "the link of the program's account is up")
        # A stream of one name in each domain, the far one over the link; both store one message.
        await hub.add_stream(name="test", subjects=["test"])
        await far.add_stream(name="test", subjects=["test"])
        assert (await leaf.stream_info("test")).state.messages == 0
        await at_hub.publish("test", b"hello world")
        for js in (hub, leaf):
            await until(lambda js=js: _is(_held(js, "test"), 1), "each stores it")  # type: ignore[misc]
        # Copies across domains, in both directions.
        external = ExternalStream(api="$JS.edge-1.API")
        origin = StreamSource(name="test", external=external)
        await hub.add_stream(StreamConfig(name="backup-test-leaf", mirror=origin))
        await hub.add_stream(StreamConfig(name="aggregate-test-leaf", sources=[origin]))
        back = StreamSource(name="test", external=ExternalStream(api="$JS.hub.API"))
        await leaf.add_stream(StreamConfig(name="backup-test-hub", mirror=back))
        for js, name in ((hub, "backup-test-leaf"), (hub, "aggregate-test-leaf"), (leaf, "backup-test-hub")):
            await until(lambda js=js, name=name: _is(_held(js, name), 1), name)  # type: ignore[misc]
        bucket = await leaf.create_key_value(bucket="settings")
        await bucket.put("rate", b"7")
        assert (await bucket.get("rate")).value == b"7"


async def _answers(js: JetStreamContext) -> bool:
    try:
        await js.account_info()
    except (nats.js.errors.Error, nats.errors.Error):
        return False
    return True


async def _is(found: Awaitable[int], wanted: int) -> bool:
    return await found == wanted


async def _the_readings_are_read_and_streams_made_while_the_hub_is_gone(site: Site) -> None:
    server = site.hub.server()
    assert site.hub.process is not None
    assert server is not None
    site.hub.process.kill()
    site.hub.process.wait()
    os.kill(server, signal.SIGKILL)
    for number in range(3):
        assert site.leaf.post(READING % number, f"k-{number}") == 204
    async with site.program(site.leaf) as program:
        petiole = program.jetstream(prefix=USER_API)
        pull = await petiole.pull_subscribe_bind(consumer=user_consumer(USER), stream=TELEMETRY)
        values: list[int] = []
        while len(values) < 4:
            for message in await pull.fetch(10, timeout=WAIT_SECONDS):
                if "._batch.http" in message.subject:
                    values += [json.loads(line)["value"] for line in _lines(message)]
                await message.ack_sync()
        assert sorted(values[-3:]) == [0, 1, 2]
        first = await petiole.get_msg(TELEMETRY, 1, direct=True)
        assert str(first.subject).startswith("tel.edge-1.normal.")
        await program.jetstream().add_stream(name="orders", subjects=["orders.>"])
        assert (await program.jetstream().publish("orders.a", b"1")).seq == 1


def _lines(message: Any) -> list[bytes]:
    import zstandard

    packed = (message.headers or {}).get("Content-Encoding") == "zstd"
    data = zstandard.ZstdDecompressor().decompress(message.data) if packed else message.data
    return list(data.splitlines())


async def _nothing_of_petioles_is_reached_but_what_may_be_read(site: Site) -> None:
    assert site.leaf.post(READING % 1, "k") == 204
    stored = site.leaf.status()["classes"]["normal"]["last"]
    async with site.program(site.leaf) as program:
        petiole, own = program.jetstream(prefix=USER_API, timeout=2), program.jetstream(timeout=30)
        # A stream of its own takes no subject of the agent's, and what it publishes is not the agent's.
        await own.add_stream(name="trap", subjects=["tel.>", "cmd.>", "petiole.>"])
        forged = "tel.edge-1.normal._batch.http"
        await own.publish(forged, b"{}", headers={"Nats-Msg-Id": "forged"})
        await own.publish("cmd.edge-1.agent.flush", b"")
        assert (await own.stream_info("trap")).state.messages == 2
        copied = StreamConfig(name="copy", sources=[StreamSource(name=TELEMETRY)])
        await own.add_stream(copied)
        asked = {
            "another stream": petiole.stream_info("COMMANDS"),
            "a consumer that delivers where it says": petiole.add_consumer(
                TELEMETRY, ConsumerConfig(durable_name="x", deliver_subject="tel.edge-1.normal._batch.http")
            ),
            "another's consumer": petiole.consumer_info(TELEMETRY, user_consumer("other")),
            "the link's consumer": petiole.consumer_info(TELEMETRY, "hub-0123456789abc"),
            "a purge": petiole.purge_stream(TELEMETRY),
            "an aggregate of the hub over its link": petiole.stream_info("TELEMETRY_0"),
        }
        for what, question in asked.items():
            with pytest.raises((nats.js.errors.Error, nats.errors.Error)):
                await question
            assert what
        assert await _held(own, "copy") == 0
    assert site.leaf.status()["classes"]["normal"]["last"] == stored


async def _a_key_that_is_revoked_is_shut_out_at_once(site: Site) -> None:
    closed = asyncio.Event()

    async def over() -> None:
        closed.set()

    client = await nats.connect(
        site.leaf.member.nats_url,
        nkeys_seed=str(site.seeds / f"{USER}.nk"),
        allow_reconnect=False,
        closed_cb=over,
    )
    said = await asyncio.to_thread(site.leaf.petiole, "user", "revoke", USER)
    assert (said.returncode, said.stdout) == (0, f"{USER} is shut out; its streams stay\n"), said.stderr
    async with asyncio.timeout(60):
        await closed.wait()
    await client.close()
    with pytest.raises(EXPECTED):
        async with connected(site.leaf.member.nats_url, site.seeds / f"{USER}.nk", USER):
            pass
    async with site.program(site.leaf, "other") as other:
        assert (await other.jetstream(prefix=USER_API).stream_info(TELEMETRY)).config.name == TELEMETRY
    made = await asyncio.to_thread(site.leaf.petiole, "user", "add", "third", "--reads", "normal")
    assert made.returncode == 0, made.stderr
    assert _taken(made.stdout, site.seeds / "third.nk") == 0o600
    async with site.program(site.leaf, "third") as third:
        await third.jetstream().add_stream(name="own", subjects=["own"])
        consumer = await third.jetstream(prefix=USER_API).consumer_info(TELEMETRY, user_consumer("third"))
        assert consumer.num_pending
    again = await asyncio.to_thread(site.leaf.petiole, "user", "add", USER, "--reads", "normal")
    assert again.returncode == 2, "a key that was revoked is not let in by the way"
    assert "petiole user replace" in again.stderr


async def _the_link_of_the_account_ends_with_that_of_its_leaf(site: Site) -> None:
    site.hub.start()
    again = await asyncio.to_thread(
        site.leaf.petiole, "user", "replace", USER, make_key(site.seeds / "new.nk")
    )
    assert again.returncode == 0, again.stderr
    async with site.program(site.hub) as program:
        far = program.jetstream(domain="edge-1", timeout=2)
        await until(lambda: _answers(far), "the account is linked")
        said = await asyncio.to_thread(site.hub.petiole, "fleet", "revoke", "edge-1")
        assert said.returncode == 0, said.stderr

        async def silent() -> bool:
            return not await _answers(far)

        await until(silent, "the link of the account is cut")


def _taken(said: str, to: Path) -> int:
    """Moves the seed that a command has made and named to its program; the mode it had."""
    seed = Path(said.splitlines()[-1].partition(": ")[2])
    mode = seed.stat().st_mode & 0o777
    seed.rename(to)
    return mode
