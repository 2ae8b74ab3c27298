"""A connection to a local server that is not there, or was not."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from nats.aio.client import Client
from nats.errors import Error as NatsError

from agent.base.metrics import Metrics
from agent.config.keys import ensure_key
from agent.demo.loopback import free_port
from agent.jetstream import connection
from agent.jetstream.connection import CancellableClient, ServerConnection, connected, listening_again
from tests.harness.configured import ConfiguredServer
from tests.harness.wait import WAIT_SECONDS, until

_LONG = 600.0
"""Seconds that no test waits."""


async def test_a_server_that_is_away_is_known_to_be_away_without_a_minute_of_tries(tmp_path: Path) -> None:
    ensure_key(tmp_path / "seed")
    with pytest.raises(NatsError):
        async with asyncio.timeout(30), connected(f"nats://127.0.0.1:{free_port()}", tmp_path / "seed", "x"):
            pytest.fail("nobody listens there")


async def test_a_server_is_reached_over_a_websocket_by_what_is_loaded_for_it_then(tmp_path: Path) -> None:
    public, port, websocket = ensure_key(tmp_path / "seed"), free_port(), free_port()
    program = f"""
import asyncio, sys
from pathlib import Path
from agent.base.late_imports import load_late
load_late("aiohttp", "multidict", "nothing_of_this_name")
from agent.jetstream.connection import connected

async def flush():
    async with connected("ws://127.0.0.1:{websocket}", Path({str(tmp_path / "seed")!r}), "x") as link:
        await link.nc.flush()

print("aiohttp.client" in sys.modules)
asyncio.run(flush())
import aiohttp.web
print("aiohttp.client" in sys.modules, aiohttp.web.Application.__name__)
"""
    users = f"authorization {{ users: [ {{ nkey: {public} }} ] }}"
    listening = f'websocket {{ listen: "127.0.0.1:{websocket}", no_tls: true }}'
    server = ConfiguredServer(tmp_path, "local", port, f'listen: "127.0.0.1:{port}"\n{users}\n{listening}\n')
    await server.start()
    try:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=PIPE)
        said, _ = await process.communicate()
    finally:
        await server.kill()
    assert said.decode().splitlines() == ["False", "True Application"]


async def test_a_server_that_listens_again_is_used_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_FIRST_DELAY", _LONG)
    monkeypatch.setattr(connection, "_LONGEST_DELAY", _LONG)
    tried, port, public = asyncio.Event(), free_port(), ensure_key(tmp_path / "seed")
    complain = ServerConnection._complain

    def note(self: ServerConnection, trouble: str, error: Exception | None = None) -> None:
        complain(self, trouble, error)
        tried.set()

    monkeypatch.setattr(ServerConnection, "_complain", note)
    begun = asyncio.Event()

    @contextlib.asynccontextmanager
    async def session(_: Client) -> AsyncIterator[None]:
        begun.set()
        yield

    users = f"authorization {{ users: [ {{ nkey: {public} }} ] }}"
    server = ConfiguredServer(tmp_path, "local", port, f'listen: "127.0.0.1:{port}"\n{users}\n')
    kept = ServerConnection(server.url, tmp_path / "seed", "x", session=session, metrics=Metrics())
    task = asyncio.create_task(kept.run())
    try:
        await tried.wait()
        await server.start()
        await until(begun.is_set, "a session has begun")
    finally:
        task.cancel()
        await server.kill()


async def test_a_server_that_listens_all_the_time_is_not_tried_before_its_time() -> None:
    accepted = 0

    def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted
        accepted += 1
        writer.close()

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        waiting = asyncio.create_task(listening_again(f"nats://127.0.0.1:{port}", _LONG))
        await until(lambda: accepted > 0, "it is looked whether the server listens")
        assert not waiting.done()
        waiting.cancel()


@pytest.mark.filterwarnings("error")
async def test_a_client_that_dials_again_closes_a_connection_whose_handshake_failed(tmp_path: Path) -> None:
    port, public = free_port(), ensure_key(tmp_path / "seed")
    users = f"authorization {{ users: [ {{ nkey: {public} }} ] }}"
    server = ConfiguredServer(tmp_path, "local", port, f'listen: "127.0.0.1:{port}"\n{users}\n')
    dialled = 0

    def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal dialled
        dialled += 1
        writer.close()

    client = CancellableClient()
    await server.start()
    try:
        await client.connect(
            server.url, nkeys_seed=str(tmp_path / "seed"), max_reconnect_attempts=-1, reconnect_time_wait=0
        )
        await server.kill()
        async with await asyncio.start_server(hang_up, "127.0.0.1", port):
            await until(lambda: dialled > 3, "it dials again and again")
            client.options["max_reconnect_attempts"] = 1
            await client.close()
    finally:
        await server.kill()
    gc.collect()  # a socket that was left open is a warning


async def test_what_is_sent_arrives_in_order_and_a_receiver_that_fails_ends_nothing(tmp_path: Path) -> None:
    port, public = free_port(), ensure_key(tmp_path / "seed")
    users = f"authorization {{ users: [ {{ nkey: {public} }} ] }}"
    server = ConfiguredServer(tmp_path, "local", port, f'listen: "127.0.0.1:{port}"\n{users}\n')
    await server.start()
    came: list[tuple[str, bytes]] = []

    def receive(subject: str, data: bytes) -> None:
        came.append((subject, data))
        if data == b"1":
            raise ValueError

    try:
        async with connected(server.url, tmp_path / "seed", "x") as link:
            headed = await link.nc.subscribe("to.*")
            await link.nc.receive("answers.*", receive)
            for data in (b"1", b"2"):
                link.nc.send("to.stream", data, "answers.7", {"Petiole-Count": data.decode(), "B": "c: d"})
                message = await headed.next_msg(timeout=WAIT_SECONDS)
                assert (message.data, message.reply) == (data, "answers.7")
                assert message.headers == {"Petiole-Count": data.decode(), "B": "c: d"}
                await link.nc.publish(message.reply, data)
            await until(lambda: len(came) == 2, "both answers are here")
            assert came == [("answers.7", b"1"), ("answers.7", b"2")]
            assert not link.over.is_set()
        with pytest.raises(NatsError):
            link.nc.send("to.stream", b"", "answers.7", {})
    finally:
        await server.kill()
