"""The embedded server outlives its agent, is adopted by the next one and started again when it dies; a reload
gives it what has changed, a renewed certificate too."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import pytest_asyncio
from msgspec.structs import replace

from agent.base.nats_server import ServerError
from agent.base.tls import client_context
from agent.config.keys import ensure_key
from agent.demo.loopback import free_port
from agent.server.child import process_of
from agent.server.process import EmbeddedServer
from agent.server.values import ClusterConfig, HubConfig, LeafUser, address_of
from tests.harness.certificates import Authority
from tests.harness.servers import make_hub
from tests.harness.wait import until

AGENT = """
import asyncio, pathlib, pickle, socket, sys, uvloop
from agent.server.process import EmbeddedServer

async def main():
    listening = socket.create_server(("127.0.0.1", 0))
    listening.set_inheritable(True)
    server = EmbeddedServer(pickle.loads(sys.stdin.buffer.read()), pathlib.Path(sys.argv[1]))
    print(await server.start(), server.pid, listening.getsockname()[1], flush=True)
    await server.supervise()

uvloop.run(main())
"""


Embed = Callable[..., EmbeddedServer]


@pytest.fixture
def config(tmp_path: Path) -> HubConfig:
    return make_hub(tmp_path / "hub").config


@pytest_asyncio.fixture
async def embed(config: HubConfig, tmp_path: Path) -> AsyncIterator[Embed]:
    """Makes what an agent with one state directory would make of a configuration; all ends with the test."""
    made: list[EmbeddedServer] = []

    def make(changed: HubConfig, directory: Path = tmp_path / "hub") -> EmbeddedServer:
        made.append(EmbeddedServer(changed, directory))
        return made[-1]

    yield make
    for one in made:
        one.release()
    for one in made:
        await one.stop()


@contextmanager
def another_agent(config: HubConfig, directory: Path) -> Iterator[tuple[int, int]]:
    """An agent that runs the server, killed at the end: the server's pid and a port the agent listens on."""
    process = subprocess.Popen(
        [sys.executable, "-c", AGENT, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(pickle.dumps(config))
            process.stdin.close()
            how, pid, port = process.stdout.readline().split()
            assert how == b"started"
            yield int(pid), int(port)
        finally:
            process.kill()


async def left_running(embed: Embed, config: HubConfig) -> tuple[EmbeddedServer, int | None]:
    """A server whose agent has ended, and its process."""
    server = embed(config)
    await server.start()
    pid = server.pid
    server.release()
    return server, pid


async def test_a_server_outlives_the_sigkill_of_its_agent_and_the_next_agent_adopts_it(
    embed: Embed, config: HubConfig, tmp_path: Path
) -> None:
    server = embed(config)
    with another_agent(config, tmp_path / "hub") as (pid, port):
        pass
    assert await server.start() == "adopted"
    assert server.pid == pid
    assert os.getsid(pid) == pid
    socket.create_server(("127.0.0.1", port)).close()  # the killed agent's port is free: nothing inherited it


async def test_a_limit_of_memory_in_the_agents_environment_is_the_servers_too(
    embed: Embed, config: HubConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOMEMLIMIT", "64MiB")
    server = embed(config)
    await server.start()
    assert psutil.Process(server.pid).environ()["GOMEMLIMIT"] == "64MiB"


async def test_an_adopted_server_is_started_again_when_it_is_killed(
    embed: Embed, config: HubConfig, tmp_path: Path
) -> None:
    server = embed(config)
    with another_agent(config, tmp_path / "hub") as (pid, _):
        pass
    await server.start()
    async with asyncio.TaskGroup() as tasks:
        watch = tasks.create_task(server.supervise())
        os.kill(pid, signal.SIGKILL)
        await until(lambda: server.pid not in (None, pid), "another process runs")
        watch.cancel()
    configuration = tmp_path / "hub" / "nats-server.conf"
    await until(lambda: process_of(configuration) == server.pid, "it has become nats-server")


async def test_a_server_that_dies_is_started_again_by_its_agent(
    embed: Embed, config: HubConfig, tmp_path: Path
) -> None:
    embed(config)
    configuration = tmp_path / "hub" / "nats-server.conf"
    with another_agent(config, tmp_path / "hub") as (pid, _):
        os.kill(pid, signal.SIGKILL)
        await until(lambda: process_of(configuration) not in (None, pid), "another process runs")


async def test_two_agents_do_not_look_after_one_server(
    embed: Embed, config: HubConfig, tmp_path: Path
) -> None:
    server = embed(config)
    with (
        another_agent(config, tmp_path / "hub"),
        pytest.raises(ServerError, match="another process looks after"),
    ):
        await server.start()


async def test_a_server_that_is_released_goes_on_and_one_that_is_stopped_ends(
    embed: Embed, config: HubConfig, tmp_path: Path
) -> None:
    server = embed(config)
    assert await server.start() == "started"
    pid = server.pid
    server.release()
    assert process_of(tmp_path / "hub" / "nats-server.conf") == pid
    await server.stop()
    assert process_of(tmp_path / "hub" / "nats-server.conf") is None


async def test_a_leaf_that_is_added_is_taken_in_by_a_reload(
    embed: Embed, config: HubConfig, tmp_path: Path
) -> None:
    _, pid = await left_running(embed, config)
    more = replace(config, leaves=(LeafUser("edge-9", ensure_key(tmp_path / "edge-9")),))
    changed = embed(more)
    assert await changed.start() == "reloaded"
    assert changed.pid == pid


async def test_what_a_reload_cannot_change_is_brought_in_by_a_new_start(
    embed: Embed, config: HubConfig, tmp_path: Path
) -> None:
    _, pid = await left_running(embed, config)
    moved = embed(replace(config, listen=f"127.0.0.1:{free_port()}"))
    assert await moved.start() == "restarted"
    assert moved.pid != pid


async def test_a_configuration_that_the_server_refuses_leaves_the_running_one_alone(
    embed: Embed, config: HubConfig, tmp_path: Path
) -> None:
    server, pid = await left_running(embed, config)
    wrong = embed(replace(config, max_payload=2**30))
    with pytest.raises(
        ServerError, match=r"(does not take its configuration|goes on with the old): .*max_payload"
    ):
        await wrong.start()
    wrong.release()
    assert await server.start() == "adopted"
    assert server.pid == pid


async def test_a_taken_port_is_named_with_whoever_has_it(
    embed: Embed, config: HubConfig, tmp_path: Path
) -> None:
    server = embed(config)
    with socket.create_server(address_of(config.leaf_listen)):
        with pytest.raises(ServerError, match=rf"{config.leaf_listen} is taken by another program"):
            await server.start()
        assert server.pid is None
    await server.start()
    other = embed(replace(config, server_name="hub-other"), tmp_path / "other")
    with pytest.raises(ServerError, match=rf"{config.listen} is taken by nats-server 'hub-test'"):
        await other.start()


async def test_a_taken_port_of_the_cluster_is_named(embed: Embed, config: HubConfig, tmp_path: Path) -> None:
    password = tmp_path / "cluster.password"
    password.write_text("of-all-servers\n")
    password.chmod(0o600)
    listen = f"127.0.0.1:{free_port()}"
    cluster = ClusterConfig(listen, routes=(f"127.0.0.1:{free_port()}",), password_file=password)
    server = embed(replace(config, cluster=cluster))
    with socket.create_server(address_of(listen)):
        with pytest.raises(ServerError, match=f"^{listen} is taken by another program; end it, or choose"):
            await server.start()
        assert server.pid is None


async def test_a_server_that_cannot_start_says_why(embed: Embed, config: HubConfig, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    server = embed(replace(config, store_dir=file))
    with pytest.raises(ServerError, match=r"nats-server ended: .*(?i:stor)"):
        await server.start()


async def test_a_renewed_certificate_is_shown_without_a_restart_of_the_server(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.signed("a", 3600)
    password = tmp_path / "password"
    password.write_text("of-all\n")
    password.chmod(0o600)
    listen = f"127.0.0.1:{free_port()}"
    cluster = ClusterConfig(listen, routes=(listen,), password_file=password, tls=(cert, key, authority.file))
    config = replace(make_hub(tmp_path / "hub").config, cluster=cluster)
    server = EmbeddedServer(config, tmp_path / "hub")
    try:
        assert await server.start() == "started"
        assert await asyncio.to_thread(shown, cluster) == ssl.PEM_cert_to_DER_cert(cert.read_text())
        assert await server.start() == "adopted"
        authority.signed("a", 7200)
        assert await server.start() == "reloaded"
        assert await asyncio.to_thread(shown, cluster) == ssl.PEM_cert_to_DER_cert(cert.read_text())
    finally:
        server.release()
        await server.stop()


def shown(cluster: ClusterConfig) -> bytes:
    """The certificate that the server shows another one."""
    assert cluster.tls is not None
    cert, key, authority = cluster.tls
    context = client_context(authority)
    context.load_cert_chain(cert, key)
    host, _, port = cluster.listen.partition(":")
    with (
        socket.create_connection((host, int(port)), 30) as plain,
        context.wrap_socket(plain, server_hostname=host) as encrypted,
    ):
        found = encrypted.getpeercert(binary_form=True)
    assert found is not None
    return found
