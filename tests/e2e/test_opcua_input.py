"""The input `opcua` with a real server that is not Python, which is killed, stopped and encrypted."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.base.metrics import Metrics
from agent.config import Seconds
from agent.leaf.inputs.opcua import NodeSelection, OpcuaOptions
from agent.leaf.inputs.opcua.input import OpcuaInput
from agent.leaf.intake import Chunk, ResumePoint
from agent.testing.agent_process import AgentProcess
from agent.testing.contract import leaf_of
from agent.testing.stored_stream import numbers_in, stored_readings
from tests.harness.input_contract import INPUTS
from tests.harness.intakes import Burying
from tests.harness.plant_servers import OpcuaServer, opcua_server, open_opcua
from tests.harness.wait import until, wait_for

SUBJECT = "/CN=edge"
NAMES = "subjectAltName=URI:urn:petiole:edge-1,DNS:edge-1"
USES = "keyUsage=digitalSignature,nonRepudiation,keyEncipherment,dataEncipherment"


@pytest.fixture
def leaf(tmp_path: Path) -> Iterator[AgentProcess]:
    """A leaf that follows a server beside it."""
    case = INPUTS["opcua"]
    agent = leaf_of(tmp_path, case)
    with case.beside(agent.member):
        yield agent
        agent.close()


@pytest.fixture
def server(leaf: AgentProcess) -> OpcuaServer:
    return opcua_server(leaf.member)


def gaps(leaf: AgentProcess) -> float:
    return leaf.metric("petiole_source_gaps_total", input="opcua")


def write(server: OpcuaServer, *numbers: float) -> None:
    server.followed("Line1/n")
    for number in numbers:
        server.write("Line1/n", number)


def test_a_server_that_was_killed_is_followed_again_and_the_gap_is_counted(
    leaf: AgentProcess, server: OpcuaServer
) -> None:
    leaf.start()
    write(server, 1.0, 2.0)
    wait_for(lambda: len(numbers_in(leaf.member)) == 2, "two are stored")
    assert gaps(leaf) == 0
    server.kill()
    wait_for(lambda: leaf.metric("petiole_input_up", input="opcua") == 0, "the loss is seen")
    server.start()
    write(server, 3.0)
    wait_for(lambda: 3.0 in numbers_in(leaf.member), "it goes on")
    assert dict(numbers_in(leaf.member)) == {1.0: 1, 2.0: 1, 3.0: 1}
    assert gaps(leaf) == 1
    assert "the server was restarted" in leaf.log.read_text()


def test_a_server_that_stands_still_costs_nothing(leaf: AgentProcess, server: OpcuaServer) -> None:
    leaf.start()
    write(server, 1.0)
    wait_for(lambda: len(numbers_in(leaf.member)) == 1, "one is stored")
    server.signal(signal.SIGSTOP)
    try:
        wait_for(lambda: leaf.metric("petiole_input_up", input="opcua") == 0, "silence is seen")
    finally:
        server.signal(signal.SIGCONT)
    write(server, 2.0, 3.0)
    wait_for(lambda: len(numbers_in(leaf.member)) == 3, "it goes on")
    assert dict(numbers_in(leaf.member)) == {1.0: 1, 2.0: 1, 3.0: 1}
    assert gaps(leaf) == 0, "the subscription has outlived it"


def test_other_variables_are_followed_after_a_change_and_present_values_stored_once(
    leaf: AgentProcess, server: OpcuaServer
) -> None:
    leaf.start()
    write(server, 1.0)
    server.write("Line1/noise", "hiss")
    wait_for(lambda: len(stored_readings(leaf.member)) == 2, "both are stored")
    assert leaf.end(signal.SIGTERM) == 0
    text = leaf.member.config.read_text()
    leaf.member.config.write_text(text.replace('metric = "{2}"', 'metric = "line.{2}"'))
    leaf.start()
    wait_for(
        lambda: len(stored_readings(leaf.member)) == 4, "the present values are stored under their new names"
    )
    assert sorted(row["metric"] for row in stored_readings(leaf.member)) == [
        "line.n",
        "line.noise",
        "n",
        "noise",
    ]
    assert gaps(leaf) == 1


class KilledCore(Burying):
    """A core that stores so many chunks more; then one was `begun` when the agent was killed."""

    left = 100
    begun: Chunk | None = None

    async def submit(self, input_name: str, cls: str, chunk: Chunk) -> None:
        self.left -= 1
        if self.left == 0:
            self.begun = chunk
            self.open.clear()
        await super().submit(input_name, cls, chunk)

    async def position(self, input_name: str) -> ResumePoint:
        before = await super().position(input_name)
        return before if self.begun is None else ResumePoint(before.position, self.begun.position)


@pytest.mark.parametrize("piece", [2, 3])
async def test_a_piece_that_a_kill_broke_off_is_gone_on_with_only_as_it_was(
    tmp_path: Path, piece: int
) -> None:
    """Pieces of two values, of which a new subscription passes over those that were stored before."""
    core = KilledCore("opcua")

    def run(server: OpcuaServer) -> asyncio.Task[None]:
        nodes = [NodeSelection(path="Line1/*", metric="{2}")]
        options = OpcuaOptions(url=server.url, nodes=nodes, publish=Seconds(0.2))
        return asyncio.create_task(OpcuaInput(options, Metrics()).run(core, asyncio.Event()))

    async def kill(running: asyncio.Task[None]) -> None:
        running.cancel()
        await asyncio.wait([running])

    with open_opcua(tmp_path) as server:
        for name in "abcdef":
            server.declare(f"Line1/{name}")
            server.write(f"Line1/{name}", [1.5] * 15_000)
        running = run(server)
        await until(lambda: len(core.rows()) == 6, "the first values are stored")
        core.left = piece
        server.forget()
        for name in "bcdf":
            server.write(f"Line1/{name}", [2.5] * 15_000)
        await until(lambda: core.begun is not None, "a piece of the changed values is being stored")
        await kill(running)
        begun, stored = core.begun, len(core.stored)
        assert begun is not None
        core.open.set()
        running = run(server)
        await until(lambda: {row["metric"] for row in core.rows() if row["value"][0] == 2.5} == set("bcdf"))
        again = [chunk.payload for chunk in core.stored[stored:] if chunk.position == begun.position]
        assert again in ([], [begun.payload]), "the core leaves out lines of it by their numbers"
        await kill(running)


def test_messages_are_encrypted_with_certificates_and_a_foreign_server_is_refused(
    leaf: AgentProcess, server: OpcuaServer, tmp_path: Path
) -> None:
    own, key, foreign = tmp_path / "own.crt", tmp_path / "own.key", tmp_path / "foreign.crt"
    for cert, secret in ((own, key), (foreign, tmp_path / "foreign.key")):
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", SUBJECT]
        command += ["-addext", NAMES, "-addext", USES, "-keyout", str(secret), "-out", str(cert)]
        subprocess.run(command, check=True, capture_output=True)
    config = leaf.member.config
    plain = config.read_text()

    def secured(certificate: Path) -> str:
        files = {"cert": own, "key": key, "server_cert": certificate}
        return (
            plain
            + 'security = "encrypt"\n'
            + "".join(f"{name} = {json.dumps(str(path))}\n" for name, path in files.items())
        )

    config.write_text(secured(foreign))
    leaf.start()
    wait_for(lambda: "nothing comes from the server" in leaf.log.read_text(), "it is refused")
    assert leaf.end(signal.SIGTERM) == 0
    config.write_text(secured(server.certificate))
    leaf.start()
    write(server, 1.0)
    wait_for(lambda: len(numbers_in(leaf.member)) == 1, "it is stored")


SMALL = {"limits": {"maxNodesPerBrowse": 7, "maxMonitoredItemsPerCall": 30, "maxNodesPerRead": 1}}
MESSAGES = {
    "transport": {
        "receiveBufferSize": 8192,
        "sendBufferSize": 65_535,
        "maxMessageSize": 16_384,
        "maxChunkCount": 2,
    }
}
COUNT = 320


@pytest.mark.parametrize(
    ("given", "unstated"),
    [
        (SMALL, {}),
        ({}, {"maxNodesPerBrowse": 3, "maxMonitoredItemsPerCall": 11}),
        ({}, {"maxNodesPerBrowse": 1, "maxMonitoredItemsPerCall": 1}),
        (MESSAGES, {}),
    ],
    ids=["stated", "unstated", "one at a time", "small messages"],
)
async def test_a_server_that_takes_little_at_once_is_followed_whole(
    tmp_path: Path, given: dict[str, Any], unstated: dict[str, int]
) -> None:
    server, core, stopping = OpcuaServer(tmp_path, json.dumps(given)), Burying("opcua"), asyncio.Event()
    server.start()
    try:
        for number in range(COUNT):
            path = f"Line{number % 16}/{'variable with a long name' * 2} {number}"
            server.declare(path)
            server.write(path, number)
        server.limit(**unstated)
        options = OpcuaOptions(url=server.url, nodes=[NodeSelection(path="Line*/*")], publish=Seconds(0.2))
        running = asyncio.create_task(OpcuaInput(options, Metrics()).run(core, stopping))
        await until(lambda: len(core.rows()) >= COUNT, "all present values are stored")
        assert sorted(core.values()) == list(range(COUNT))
        stopping.set()
        await running
    finally:
        server.kill()
