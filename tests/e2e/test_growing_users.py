"""A hub that runs takes in users and shuts them out, while a leaf sends: neither its agent nor its server is
started again, no link is cut, nothing is lost, and who is shut out loses access at once."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
from nats.aio.client import Client

from agent.config.keys import make_key
from agent.contract import user_consumer
from agent.jetstream.connection import EXPECTED, abort
from tests.e2e.test_growing_fleet import LINK_ENDED, Sender, reaches, sending
from tests.harness.agent_process import Agent, hub_and_leaf
from tests.harness.wait import WAIT_SECONDS, until, wait_for


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
