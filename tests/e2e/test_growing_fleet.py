"""A hub that runs takes in leaves that are added, and users, and shuts users out, while another leaf sends:
neither its agent nor its server is started again, no link is cut, nothing is lost, and who is shut out loses
access at once."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nkeys
import pytest
from nats.aio.client import Client
from typer.testing import CliRunner

from agent.cli.main import app
from agent.config.keys import make_key
from agent.contract import Exit, user_consumer
from agent.demo import plan
from agent.demo.loopback import free_port
from agent.jetstream.connection import EXPECTED, abort
from tests.harness.agent_process import PETIOLE, Agent, hub_and_leaf
from tests.harness.wait import WAIT_SECONDS, until, wait_for

READING = b'{"device":"pump-7","metric":"pressure","value":2.4}'
LINK_ENDED = "Leafnode connection closed"


PAUSE = 0.02
"""Seconds between readings: often enough that no change of the hub falls between two of them."""


class Sender:
    """Posts readings to a leaf, one after the other, from a thread of its own."""

    def __init__(self, leaf: Agent) -> None:
        self._leaf, self._stopping = leaf, threading.Event()
        self.stored, self.refused = 0, 0

    def send(self) -> None:
        """Until `end`."""
        while not self._stopping.wait(PAUSE):
            if self._leaf.post(READING, f"a-{self.stored + self.refused}") == 204:
                self.stored += 1
            else:
                self.refused += 1

    def sends(self, more: int) -> None:
        """Wait until it has stored more."""
        enough = self.stored + more
        wait_for(lambda: self.stored >= enough, "the leaf stores what is sent")

    def end(self) -> None:
        """Send no more."""
        self._stopping.set()


@contextmanager
def sending(leaf: Agent) -> Iterator[Sender]:
    sender = Sender(leaf)
    thread = threading.Thread(target=sender.send)
    thread.start()
    try:
        yield sender
    finally:
        sender.end()
        thread.join()


def newcomer(beside: Agent, domain: str, leaf_port: str) -> tuple[Agent, str]:
    """A leaf that dials the same hub, and what it prints when it is enrolled."""
    member = plan.member(beside.member.directory.parent, domain)
    toml = plan.leaf_toml(member, int(leaf_port))
    leaf = Agent(member, toml[: toml.rindex('[[input]]\ntype = "file"')])
    return leaf, CliRunner().invoke(app, ["enrol", "-c", str(member.config)]).stdout


def added(hub: Agent, printed: str, here: Path) -> None:
    """Let a leaf in, from a directory that is not the hub's."""
    file = Path("..") / hub.member.config.relative_to(here.parent)
    ended = subprocess.run(
        [PETIOLE, "fleet", "add", "-", "-c", str(file)],
        input=printed,
        capture_output=True,
        text=True,
        cwd=here,
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert (ended.returncode, "is let in\n" in ended.stdout) == (0, True), ended


def reaches(hub: Agent, leaf: Agent) -> bool:
    """Whether the hub holds all that a leaf has stored."""
    held = hub.status()["fleet"]["leaves"][leaf.member.domain].get("classes", {}).get("normal")
    return held is not None and held["cursor"] >= leaf.status()["classes"]["normal"]["last"]


def test_leaves_are_added_to_a_running_hub_while_another_one_sends(tmp_path: Path) -> None:
    with hub_and_leaf(tmp_path, http_only=True) as (hub, leaf):
        text = hub.member.config.read_text()
        port = text.partition('leaf_listen = "127.0.0.1:')[2].partition('"')[0]
        hub.member.config.write_text(text.replace(f'"{hub.member.state}"', f'"{hub.member.state.name}"'))
        second, *printed = newcomer(leaf, "edge-2", port)
        printed.append(newcomer(leaf, "edge-3", port)[1])
        hub.start()
        leaf.start()
        wait_for(lambda: leaf.status()["link"]["state"] == "flowing", "the link flows")
        server, epochs = hub.server(), leaf.metric("petiole_epochs_total")

        with sending(leaf) as sender:
            for table in (*printed, printed[-1]):
                sender.sends(5)
                added(hub, table, leaf.member.directory)
            sender.sends(5)
        assert (sender.stored >= 20, sender.refused) == (True, 0)
        assert leaf.metric("petiole_stored_readings_total", input="http") == sender.stored
        wait_for(lambda: reaches(hub, leaf), "the hub holds all of it")

        assert set(hub.status()["fleet"]["leaves"]) == {"edge-1", "edge-2", "edge-3"}
        assert hub.log.read_text().count('"event": "started"') == 1, "its agent was never started again"
        assert hub.server() == server
        for side in (hub, leaf):
            assert LINK_ENDED not in (side.member.state / "nats" / "nats-server.log").read_text()
        assert leaf.metric("petiole_epochs_total") == epochs

        try:
            second.start()
            assert second.post(READING, "b-1") == 204
            wait_for(lambda: reaches(hub, second), "what the newcomer stores is at the hub")
        finally:
            second.close()


def test_a_thousand_leaves_that_the_store_does_not_hold_are_refused_at_once_with_what_helps(
    tmp_path: Path,
) -> None:
    tables = [
        f'[[leaf]]\ndomain = "edge-{number}"\nrevoked = ["{public_key_of(number)}"]\n'
        for number in range(1_000)
    ]
    member = plan.member(tmp_path, "hub")
    hub = Agent(member, plan.hub_toml(member, free_port(), tables))
    try:
        hub.launch()
        assert hub.process is not None
        assert hub.process.wait(WAIT_SECONDS) == Exit.USAGE
        assert "do not hold 5 aggregates" in hub.log.read_text()
        assert "or registrar.max_sources larger" in hub.log.read_text()

        text = member.config.read_text()
        member.config.write_text(text.replace("[registrar]", "[registrar]\nmax_sources = 1000"))
        hub.start()
        assert len(hub.status()["fleet"]["leaves"]) == 1_000

        member.config.write_text(text)
        hub.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "configuration rejected" in hub.log.read_text(), "the hub refuses it")
        assert hub.status_of("/readyz") == 200
    finally:
        hub.close()


def public_key_of(number: int) -> str:
    seed = nkeys.encode_seed(number.to_bytes(32, "big"), nkeys.PREFIX_BYTE_USER)
    return bytes(nkeys.from_seed(seed).public_key).decode()


async def connected(hub: Agent, seed: Path) -> Client:
    """A connection of a program that has nothing but its own key."""

    async def silent(_: Exception) -> None:
        pass

    client = Client()
    try:
        await client.connect(
            hub.member.nats_url, nkeys_seed=str(seed), allow_reconnect=False, error_cb=silent
        )
    except BaseException:
        abort(client)
        raise
    return client


async def is_cut_off(hub: Agent, client: Client, seed: Path) -> None:
    """Wait until a program's connection has ended, and see that it gets no other one."""
    await until(lambda: client.is_closed, "its connection ends")
    with pytest.raises(EXPECTED):
        await connected(hub, seed)


async def user(hub: Agent, *command: str) -> None:
    ended = await asyncio.to_thread(hub.petiole, "user", *command)
    assert ended.returncode == 0, ended


async def sends(sender: Sender) -> None:
    await asyncio.to_thread(sender.sends, 5)


def table(name: str, key: str) -> str:
    return f'\n[[user]]\nname = "{name}"\nkey = "{key}"\nreads = ["TELEMETRY_0"]\nmax_bytes = "64MiB"\n'


async def test_users_of_a_running_hub_come_and_go_while_a_leaf_sends(tmp_path: Path) -> None:
    with hub_and_leaf(tmp_path, http_only=True) as (hub, leaf):
        seeds = {name: tmp_path / "seeds" / f"{name}.nk" for name in ("app", "edited", "killed")}
        keys = {name: make_key(seed) for name, seed in seeds.items()}
        await asyncio.to_thread(hub.start)
        await asyncio.to_thread(leaf.start)
        wait_for(lambda: leaf.status()["link"]["state"] == "flowing", "the link flows")
        server, epochs = hub.server(), leaf.metric("petiole_epochs_total")
        before = hub.member.config.read_text()

        with sending(leaf) as sender:
            await sends(sender)
            await user(hub, "add", "app", keys["app"], "--reads", "TELEMETRY_0")
            app = await connected(hub, seeds["app"])
            await app.jetstream().add_stream(name="OWN", subjects=["own.>"])
            reader = await app.jetstream(prefix="JS.petiole.API").pull_subscribe_bind(
                user_consumer("app"), "TELEMETRY_0"
            )
            assert await reader.fetch(1, timeout=WAIT_SECONDS)

            hub.member.config.write_text(hub.member.config.read_text() + table("edited", keys["edited"]))
            assert hub.process is not None
            hub.process.send_signal(signal.SIGHUP)
            await asyncio.to_thread(
                wait_for, lambda: keys["edited"] in _server_file(hub), "the edited file is taken in"
            )
            await (await _let_in(hub, seeds["edited"])).close()
            assert not app.is_closed, "a user that stays keeps its connection"

            await sends(sender)
            await user(hub, "revoke", "app")
            await is_cut_off(hub, app, seeds["app"])
            await user(hub, "forget", "app")
            await sends(sender)
        assert sender.refused == 0
        wait_for(lambda: reaches(hub, leaf), "the hub holds all of it")
        assert hub.log.read_text().count('"event": "started"') == 1, "its agent was never started again"

        with sending(leaf) as sender:
            hub.member.config.write_text(before + table("killed", keys["killed"]))
            hub.end(signal.SIGKILL)  # before it reads the file
            await asyncio.to_thread(hub.start)
            killed = await _let_in(hub, seeds["killed"])
            hub.member.config.write_text(before)
            hub.process.send_signal(signal.SIGHUP)
            wait_for(lambda: keys["killed"] not in _server_file(hub), "the server's file is written")
            hub.end(signal.SIGKILL)  # before the server reads it, or just after
            await asyncio.to_thread(hub.start)
            await is_cut_off(hub, killed, seeds["killed"])
            await sends(sender)
        assert sender.refused == 0
        wait_for(lambda: reaches(hub, leaf), "the hub holds all of it")
        assert hub.server() == server
        for side in (hub, leaf):
            assert LINK_ENDED not in (side.member.state / "nats" / "nats-server.log").read_text()
        assert leaf.metric("petiole_epochs_total") == epochs


def _server_file(hub: Agent) -> str:
    return (hub.member.state / "nats" / "nats-server.conf").read_text()


async def _let_in(hub: Agent, seed: Path) -> Client:
    """The connection of a program that is let in soon."""
    made: list[Client] = []

    async def is_let_in() -> bool:
        try:
            made.append(await connected(hub, seed))
        except EXPECTED:
            return False
        return True

    await until(is_let_in, "the program is let in")
    return made[0]
