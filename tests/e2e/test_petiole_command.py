"""`petiole command` as an operator runs it at the hub."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from agent.cli import command
from agent.cli.command import is_linked, store
from agent.cli.configuration import configuration
from agent.config import Size, StreamClass
from agent.contract import COMMANDS, Command, parse_command
from agent.demo.loopback import free_port
from agent.hub.registrar.aggregate import commands_config
from agent.jetstream import JetStream
from tests.harness.agents import agent, leaf_config, probe_stream
from tests.harness.commands import Desk, soon
from tests.harness.servers import ServerPair, api
from tests.harness.wait import SERVER_RETRY_SECONDS, until

PETIOLE = str(Path(sys.executable).parent / "petiole")


@dataclass(frozen=True)
class Printed:
    """What a command ended with."""

    code: int
    out: str
    err: str


class Operator:
    """Types commands at the hub."""

    def __init__(self, config: Path, desk: Desk) -> None:
        self.config, self.desk = config, desk
        self.settings = configuration(config)

    async def types(self, *words: str) -> Printed:
        """Run `petiole command -c … WORDS`."""
        process = await asyncio.create_subprocess_exec(
            PETIOLE,
            "command",
            "-c",
            str(self.config),
            *words,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        assert process.returncode is not None
        return Printed(process.returncode, out.decode(), err.decode())

    async def _says(self, linked: bool) -> bool:
        return await asyncio.to_thread(is_linked, self.settings, self.desk.domain) is linked

    @asynccontextmanager
    async def hub_agent(self) -> AsyncIterator[None]:
        """The hub's agent, as long as the context."""
        process = await asyncio.create_subprocess_exec(PETIOLE, "run", "-c", str(self.config))
        try:
            await until(lambda: self._says(False), "the hub's agent answers")
            # It knows the link by its user when it sees it come up; by its name it is another machine's here.
            leaf = self.desk.servers.leaf
            leaf.proxy.cut()
            await leaf.wait_linked(False)
            leaf.proxy.restore()
            await until(lambda: self._says(True), "the hub's agent sees the link")
            yield
        finally:
            process.terminate()
            await process.wait()


@pytest_asyncio.fixture
async def operator(servers: ServerPair, tmp_path: Path) -> Operator:
    """The hub's configuration beside a test's server, and an empty stream of commands."""
    hub = servers.hub
    (user,) = hub.config.leaves
    for key in ("registrar", "registrar_system"):
        hub.keys[key].chmod(0o600)
    config = tmp_path / "hub.toml"
    config.write_text(
        f"""\
role = "hub"
domain = "hub"
state_dir = "{tmp_path / "hub-agent"}"

[nats]
server = "external"
listen = "{hub.config.listen}"
seed_file = "{hub.keys["registrar"]}"
system_seed_file = "{hub.keys["registrar_system"]}"

[admin]
listen = "127.0.0.1:{free_port()}"

[registrar]
max_bytes = "64MiB"

[[leaf]]
domain = "{user.domain}"
key = "{user.key}"
"""
    )
    registrar = await hub.connect("registrar")
    await api(registrar, f"STREAM.CREATE.{COMMANDS}", commands_config())
    return Operator(config, Desk(servers, JetStream(registrar), await probe_stream(servers.leaf)))


async def test_an_operator_sends_a_command_and_reads_its_answer(
    operator: Operator, servers: ServerPair, tmp_path: Path
) -> None:
    stream = StreamClass(max_bytes=Size(2**28))
    async with (
        operator.hub_agent(),
        agent(leaf_config(servers.leaf, tmp_path / "agent", stream=stream)) as leaf,
    ):
        await until(lambda: leaf.value("petiole_linked") == 1.0, "the hub answers announcements")
        pong = await operator.types("edge-1", "ping", "--wait", f"{SERVER_RETRY_SECONDS}s")
        assert (pong.code, pong.out) == (0, "done: here\n"), pong
        assert "stored; edge-1 is linked" in pong.err
        shown = json.loads((await operator.types("edge-1", "status", "--json")).out)
        assert shown["outcome"] == "done"
        assert json.loads(shown["text"])["run"] == leaf.run
        refused = await operator.types("edge-1", "dance")
        assert refused.code == 1
        assert refused.out.startswith("unknown: there is no verb 'dance' here; there are ")
        servers.leaf.proxy.cut()
        await servers.leaf.wait_linked(False)
        later = asyncio.create_task(operator.types("edge-1", "ping", "--wait", f"{SERVER_RETRY_SECONDS}s"))
        gone = await operator.types("edge-1", "ping", "--wait", "1s")
        assert gone.code == 5
        assert "no answer within 1s: stored; edge-1 is not linked: it runs when the leaf is back" in gone.out
        servers.leaf.proxy.restore()
        assert (await later).out == "done: here\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("edge-9", "ping"), "the hub knows no leaf 'edge-9'; it knows edge-1"),
        (("edge-1", "Ping Pong"), "verb 'Ping Pong' is not"),
        (("edge-1", "ping", "nonsense"), "'nonsense' is not KEY=VALUE"),
        (("edge-1", "ping", "--expires", "soon"), "--expires 'soon' is not a duration"),
        (("edge-1", "ping", f"x={'y' * 70_000}"), "65536 are allowed"),
    ],
)
async def test_wrong_usage_is_told_and_sends_nothing(
    operator: Operator, words: tuple[str, ...], told: str
) -> None:
    printed = await operator.types(*words)
    assert printed.code == 2
    assert told in printed.err
    assert (await operator.desk.hub.stream_info("COMMANDS")).last == 0


async def test_a_command_for_another_program_is_stored_and_not_waited_for(operator: Operator) -> None:
    printed = await operator.types("edge-1", "move", "by=3", "fast=true", "--app", "plc", "--json")
    assert printed.code == 0
    message = await operator.desk.hub.get_message("COMMANDS", seq=json.loads(printed.out)["sequence"])
    assert message is not None
    assert message.subject == "cmd.edge-1.plc.move"
    assert json.loads(message.data)["args"] == {"by": 3, "fast": True}


async def test_a_full_stream_of_commands_takes_no_more_and_loses_none(operator: Operator) -> None:
    js = operator.desk.hub
    await js.update_stream({**commands_config(), "max_bytes": 1024})
    codes = [(await operator.types("edge-1", "ping", "--wait", "0s")).code for _ in range(2)]
    refused = await operator.types("edge-1", "ping", f"x={'y' * 1000}", "--wait", "0s")
    assert (codes, refused.code) == ([0, 0], 1)
    assert "nothing was sent: JetStream refused" in refused.err
    assert "maximum bytes exceeded" in refused.err
    assert (await js.stream_info(COMMANDS)).messages == 2


async def test_the_hub_forgets_a_command_some_time_after_it_has_expired(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    js = operator.desk.hub
    await store(js, "edge-1", "agent", "ping", Command("long", {}, soon()))
    monkeypatch.setattr(command, "KEPT", 0.0)
    await store(js, "edge-1", "agent", "ping", Command("short", {}, soon(1.0)))
    await until(lambda: _holds(js, 1), "the hub has forgotten it")
    kept = await js.get_message(COMMANDS, seq=1)
    assert kept is not None
    assert parse_command(kept.data).id == "long"


async def _holds(js: JetStream, messages: int) -> bool:
    return (await js.stream_info(COMMANDS)).messages == messages


async def test_a_hub_that_is_away_is_told(operator: Operator) -> None:
    await operator.desk.servers.hub.stop()
    printed = await operator.types("edge-1", "ping", "--wait", "0s")
    assert printed.code == 5
    assert "the hub's NATS server at" in printed.err


async def test_what_nobody_answers_is_stored_and_told(operator: Operator) -> None:
    printed = await operator.types("edge-1", "ping", "--wait", "1s")
    assert printed.code == 5
    assert "no answer within 1s: stored; it runs when the leaf is back, unless that is after" in printed.out
