"""What is missing on the machine when the agent starts: it runs with the rest, says what is missing, and goes
on by itself once it is there. Only a configuration that a person must change ends it, with exit code 2."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from agent.config.keys import make_key
from agent.demo import plan
from agent.demo.loopback import free_port
from tests.faults.tools.disk import SmallDisk, missing, small_disk
from tests.harness.agent_process import PETIOLE, Agent
from tests.harness.wait import wait_for

READING = b'{"device":"pump-7","metric":"pressure","value":2.4}'
ADDRESS = "198.51.100.77"
"""Of a range for documentation, so that no machine has it."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", 32) as one:
        yield one


@pytest.fixture
def leaf_on_disk(tmp_path: Path, disk: SmallDisk) -> Iterator[Agent]:
    """A leaf that has its state directory and its store on the small disk, as it is by default."""
    member = plan.member(tmp_path, "edge-1")
    toml = plan.leaf_toml(member, free_port()).replace(str(member.state), str(disk.path / "state"))
    agent = OnDisk(member, toml, disk.path / "state")
    yield agent
    disk.free()
    agent.close()


class OnDisk(Agent):
    """An agent whose state directory is elsewhere."""

    def __init__(self, member: plan.Member, toml: str, state: Path) -> None:
        super().__init__(member, toml)
        self.state = state

    def server(self) -> int | None:
        from agent.server.child import process_of

        return process_of(self.state / "nats" / "nats-server.conf")


def refused_on(disk: SmallDisk, leaf: Agent) -> bool:
    """Whether a reading is refused while the disk is full; a process that was killed gives room back late."""
    disk.fill()
    return answered(leaf) == 503


def answered(leaf: Agent) -> int | None:
    """The code that a reading gets, None where nobody listens."""
    with contextlib.suppress(OSError):
        return leaf.post(READING, os.urandom(8).hex())
    return None


@pytest.mark.skipif(missing() is not None, reason=f"no disk can be filled: {missing()}")
@pytest.mark.parametrize("server_dies", [False, True], ids=["the server goes on", "the server dies too"])
def test_an_agent_killed_on_a_full_disk_starts_on_it_and_goes_on_when_there_is_room(
    leaf_on_disk: Agent, disk: SmallDisk, server_dies: bool
) -> None:
    leaf = leaf_on_disk
    leaf.start()
    assert leaf.post(READING, "a-1") == 204
    disk.fill()
    assert disk.room() == 0
    leaf.end(signal.SIGKILL)
    if server_dies:
        server = leaf.server()
        assert server is not None
        os.kill(server, signal.SIGKILL)
        wait_for(lambda: leaf.server() is None, "the server is gone")
    leaf.launch()
    assert leaf.process is not None
    wait_for(lambda: refused_on(disk, leaf), "readings are refused")
    assert leaf.status_of("/readyz") == 503
    assert leaf.process.poll() is None
    disk.free()
    wait_for(lambda: answered(leaf) == 204, "readings are stored again")
    assert leaf.process.poll() is None
    assert leaf.end(signal.SIGTERM) == 0
    assert json.loads((disk.path / "state" / "state.json").read_bytes())["acked"]["normal"]["closed"]


@contextlib.contextmanager
def address(host: str) -> Iterator[None]:
    """An address that this machine has for as long as the context lasts."""
    subprocess.run(("ip", "address", "add", f"{host}/32", "dev", "lo"), check=True)
    try:
        yield
    finally:
        subprocess.run(("ip", "address", "del", f"{host}/32", "dev", "lo"), check=True)


def is_up(leaf: Agent, name: str) -> bool:
    return leaf.metric("petiole_input_up", input=name) == 1


def connects(host: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((host, port), 1):
        return True
    return False


def test_what_cannot_be_listened_on_yet_comes_up_by_itself_and_the_rest_runs(leaf: Agent) -> None:
    token = leaf.member.directory / "late" / "token"
    ports = {name: free_port() for name in ("taken", "absent", "token")}
    leaf.member.config.write_text(
        leaf.member.config.read_text()
        + f"""
[[input]]
type = "http"
name = "token"
listen = "127.0.0.1:{ports["token"]}"
token_file = "{token}"

[[input]]
type = "socket"
name = "taken"
listen = "tcp://127.0.0.1:{ports["taken"]}"

[[input]]
type = "socket"
name = "absent"
listen = "tcp://{ADDRESS}:{ports["absent"]}"
"""
    )
    with contextlib.ExitStack() as stack:
        other = stack.enter_context(socket.create_server(("127.0.0.1", ports["taken"])))
        admin = stack.enter_context(socket.create_server(("127.0.0.1", leaf.member.admin_port)))
        leaf.launch()
        wait_for(lambda: answered(leaf) == 204, "an input that nothing stands in the way of takes readings")
        admin.close()
        wait_for(lambda: leaf.status_of("/readyz") == 200, "the admin server comes up")
        for told in (f"{ports['taken']} is taken", f"{ADDRESS}:{ports['absent']}", str(token)):
            wait_for(lambda told=told: told in leaf.log.read_text(), f"{told} is named")  # type: ignore[misc]
        assert "Traceback" not in leaf.log.read_text()
        other.close()
        wait_for(lambda: is_up(leaf, "taken") and connects("127.0.0.1", ports["taken"]), "the port is free")
        token.parent.mkdir()
        token.touch(0o600)
        token.write_text("secret-of-the-test")
        wait_for(lambda: connects("127.0.0.1", ports["token"]), "the token is there")
        if os.geteuid() == 0:
            stack.enter_context(address(ADDRESS))
            wait_for(lambda: connects(ADDRESS, ports["absent"]), "the address is there")
        assert leaf.end(signal.SIGTERM) == 0


def test_a_seed_that_is_not_there_yet_is_waited_for_and_not_made(leaf: Agent) -> None:
    seed = leaf.member.directory / "late" / "link.nk"
    text = leaf.member.config.read_text()
    leaf.member.config.write_text(text.replace("[nats]", f'[nats]\nlink_seed_file = "{seed}"'))
    leaf.launch()
    wait_for(lambda: str(seed) in leaf.log.read_text(), "the missing file is named")
    wait_for(lambda: leaf.status_of("/healthz") == 200, "the agent runs")
    assert leaf.status_of("/readyz") == 503
    assert not seed.exists()
    make_key(seed)
    wait_for(lambda: answered(leaf) == 204, "readings are taken")
    assert leaf.end(signal.SIGTERM) == 0


def test_a_port_of_the_server_that_is_taken_for_a_moment_is_waited_for(leaf: Agent) -> None:
    with socket.create_server(("127.0.0.1", leaf.member.nats_port)):
        leaf.launch()
        wait_for(lambda: leaf.status_of("/readyz") == 503, "the agent runs")
        told = f"{leaf.member.nats_port} is taken by another program"
        wait_for(lambda: told in leaf.status()["server"]["state"], "what keeps the server from it is named")
    wait_for(lambda: answered(leaf) == 204, "the server is started")


def test_a_second_agent_says_that_petiole_runs_here_and_as_which_process(leaf: Agent) -> None:
    leaf.start()
    assert leaf.process is not None
    ended = leaf.petiole("run")
    assert ended.returncode == 1
    (said,) = [json.loads(line) for line in ended.stderr.splitlines()]
    assert f"petiole already runs here, as process {leaf.process.pid}" in said["reason"]
    assert "taken" not in ended.stderr


def test_an_agent_that_is_stopped_while_it_waits_ends_well(leaf: Agent) -> None:
    seed = leaf.member.directory / "late" / "link.nk"
    text = leaf.member.config.read_text()
    leaf.member.config.write_text(text.replace("[nats]", f'[nats]\nlink_seed_file = "{seed}"'))
    leaf.launch()
    wait_for(lambda: str(seed) in leaf.log.read_text(), "it waits")
    assert leaf.end(signal.SIGTERM) == 0


def test_only_what_the_file_says_ends_with_exit_code_2(leaf: Agent) -> None:
    text = leaf.member.config.read_text()
    leaf.member.config.write_text(re.sub(r'interval = "1s"', 'interval = "1ms"', text))
    ended = subprocess.run(
        [PETIOLE, "run", "-c", leaf.member.config], capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.returncode == 2
    assert "interval" in ended.stderr
    assert not any(one.name() == "nats-server" for one in psutil.Process().children())
