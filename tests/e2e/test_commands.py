"""Commands on a leaf with real servers: run once, in order, answered once, whatever happens in between."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from agent.base.clock import Instant
from agent.config import Config, Size, StreamClass
from agent.contract import COMMANDS, MAX_COMMAND_BYTES, Clock
from agent.jetstream import JetStream, JetStreamError
from agent.leaf.commands import runner
from agent.leaf.commands.handlers import AgentControls, CommandHandler, Reply, make_handlers
from agent.process import leaf as leaf_module
from tests.harness.agents import agent, leaf_config
from tests.harness.clocks import SECOND
from tests.harness.commands import Desk, open_desk, soon
from tests.harness.servers import Leaf, open_server_pair
from tests.harness.wait import until


class Bell:
    """A verb `ring` that notes each call, and hangs while it is `stuck`."""

    def __init__(self) -> None:
        self.rung: list[Any] = []
        self.times: list[float] = []
        self.stuck = False

    async def ring(self, args: Mapping[str, Any]) -> Reply:
        self.rung.append(args.get("n"))
        self.times.append(time.monotonic())
        if self.stuck:
            await asyncio.Event().wait()
        return Reply("rung")

    def verbs(self, controls: AgentControls) -> dict[str, CommandHandler]:
        return make_handlers(controls) | {"ring": CommandHandler(self.ring)}


@pytest.fixture
def bell(monkeypatch: pytest.MonkeyPatch) -> Bell:
    one = Bell()
    monkeypatch.setattr(leaf_module, "make_handlers", one.verbs)
    return one


async def test_commands_sent_while_the_link_is_cut_run_once_and_in_order_when_it_is_back(
    desk: Desk, bell: Bell, tmp_path: Path
) -> None:
    leaf = desk.servers.leaf
    async with agent(_config(leaf, tmp_path / "agent")):
        await desk.send("ring", n=0)
        await desk.answers(1)
        leaf.proxy.cut()
        await leaf.wait_linked(False)
        for n in range(1, 6):
            await desk.send("ring", n=n, expires=soon())
        assert bell.rung == [0]
        leaf.proxy.restore()
        answers = await desk.answers(6, 60)
    assert bell.rung == [0, 1, 2, 3, 4, 5]
    assert [one.id for one in answers] == desk.sent
    assert {one.outcome for one in answers} == {"done"}


async def test_each_kind_of_command_is_answered_once_in_its_own_words(desk: Desk, tmp_path: Path) -> None:
    async with agent(_config(desk.servers.leaf, tmp_path / "agent")) as one:
        await desk.send("ping")
        await desk.send("status")
        await desk.send("format-the-disk")
        await desk.send("ping", path="/etc/shadow")
        await desk.send("ping", expires=soon(-1))
        await desk.put("ping", b"\xff not JSON")
        await desk.put("ping", json.dumps({"v": 1, "id": "x" * 65, "args": {}, "expires": None}).encode())
        await desk.put("ping", b" " * (MAX_COMMAND_BYTES + 1))
        await desk.put("ping.twice", b"{}")
        await desk.put("ping", b'{"v":1,"id":"\\ud800","args":{},"expires":null}')
        await desk.put("ping", b'{"v":1,"id":"x","args":{"\\ud800":1},"expires":null}')
        await desk.put("ring", b"{}", app="plc")
        await desk.send("ping")
        answers = await desk.answers(12)
        await asyncio.sleep(runner.POLL_SECONDS)
        assert len(await desk.answers(12)) == 12
        assert one.value("petiole_commands_total", outcome="malformed") == 7
    outcomes = [one.outcome.value for one in answers]
    assert outcomes == ["done", "done", "unknown", "malformed", "expired", *["malformed"] * 6, "done"]
    assert json.loads(answers[1].text)["domain"] == desk.domain
    assert "there is no verb 'format-the-disk' here; there are flush," in answers[2].text
    assert "path" in answers[3].text
    assert "it was not run" in answers[4].text
    assert "above the limit of 65536" in answers[7].text
    assert answers[8].verb == "ping.twice"
    assert [one.id for one in answers] == [*desk.sent[:5], *[None] * 5, "x", desk.sent[5]]


async def test_a_subject_that_is_no_text_stops_nothing(desk: Desk, tmp_path: Path) -> None:
    async with agent(_config(desk.servers.leaf, tmp_path / "agent")):
        raw = await desk.servers.hub.connect("registrar")
        writer = raw._transport
        assert writer is not None
        writer.write(f"PUB cmd.{desk.domain}.agent.".encode() + b"\xff\xfe 1\r\nx\r\n")
        await raw.flush()
        await desk.send("ping")
        answers = await desk.answers(2)
    assert [one.outcome for one in answers] == ["malformed", "done"]


async def test_a_command_that_was_begun_when_the_agent_died_is_not_run_again(
    desk: Desk, bell: Bell, tmp_path: Path
) -> None:
    config = _config(desk.servers.leaf, tmp_path / "agent")
    async with agent(config):
        bell.stuck = True
        await desk.send("ring", n=1)
        await desk.send("ring", n=2)
        await until(lambda: bell.rung == [1], "the first is begun")
    bell.stuck = False
    async with agent(config):
        answers = await desk.answers(2)
    assert bell.rung == [1, 2]
    assert [(one.id, one.outcome.value) for one in answers] == [("c-0", "interrupted"), ("c-1", "done")]


async def test_an_answer_is_remembered_when_the_class_of_answers_is_another_one(
    bell: Bell, tmp_path: Path
) -> None:
    async with (
        open_server_pair(tmp_path, "edge-1", classes=("normal", "other")) as servers,
        open_desk(servers) as desk,
    ):
        config = _config(servers.leaf, tmp_path / "agent")
        async with agent(config) as one:
            await desk.send("ring", n=1)
            await desk.answers(1)
            await one.stop()  # an agent that is killed right after may not have the answer in its state file
        other = StreamClass("other", Size(2**28))
        async with agent(msgspec.structs.replace(config, class_=[other])) as one:
            await desk.send("ring", n=2)
            await until(lambda: one.value("petiole_commands_total", outcome="done") == 1, "it is answered")
            assert one.value("petiole_commands_total", outcome="interrupted") == 0
    assert bell.rung == [1, 2]


async def test_a_flood_of_commands_is_run_at_a_bounded_rate_and_in_order(
    desk: Desk, bell: Bell, tmp_path: Path
) -> None:
    count = 100
    await asyncio.gather(*(desk.send("ring") for _ in range(count)))
    async with agent(_config(desk.servers.leaf, tmp_path / "agent")):
        answers = await desk.answers(count)
    assert bell.times[-1] - bell.times[0] > (count - 1) * runner.SPACING * 0.9
    assert [one.sequence for one in answers] == sorted({one.sequence for one in answers})
    assert len(answers) == count


async def test_commands_of_a_hub_whose_stream_was_made_anew_are_run(
    desk: Desk, bell: Bell, tmp_path: Path
) -> None:
    async with agent(_config(desk.servers.leaf, tmp_path / "agent")):
        for n in range(3):
            await desk.send("ring", n=n)
        await desk.answers(3)
        await desk.servers.hub.stop()
        (stream,) = desk.servers.hub.config.store_dir.rglob(f"streams/{COMMANDS}")
        shutil.rmtree(stream)
        await desk.servers.hub.start()
        await until(lambda: _answers(desk.hub), "the hub has the stream again")
        await desk.send("ring", n=3)
        answers = await desk.answers(4, 60)
    assert bell.rung == [0, 1, 2, 3]
    assert answers[3].sequence == 1


def _instant(wall: float, synchronised: bool) -> Instant:
    return Instant(int(wall * SECOND), Clock(synchronised, "b", 0))


async def test_a_command_that_may_have_expired_waits_for_the_clock(
    desk: Desk, bell: Bell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [_instant(0.0, False)]
    monkeypatch.setattr(leaf_module, "ClockReader", lambda: SimpleNamespace(look=lambda: clock[0]))
    monkeypatch.setattr(runner, "CLOCK_SECONDS", 600.0)
    async with agent(_config(desk.servers.leaf, tmp_path / "agent")):
        await desk.send("ping", expires=soon())
        await desk.send("ring", n=1, expires=soon())
        await desk.answers(1)
        assert bell.rung == []
        clock[0] = _instant(soon(0.0), True)
        await desk.answers(2)
        assert bell.rung == [1]
        monkeypatch.setattr(runner, "CLOCK_SECONDS", 5.0)
        clock[0] = _instant(0.0, False)
        for _ in range(5):
            await desk.send("ring", n=2, expires=soon())
        await desk.send("ring", n=3)
        answers = await desk.answers(8, 5.0 + 15.0)  # five waits would take longer
    assert bell.rung == [1, 3]
    assert [one.outcome.value for one in answers[2:]] == [*["expired"] * 5, "done"]
    assert "this machine's clock says 1970-01-01" in answers[2].text


async def test_an_answer_that_has_no_room_waits_and_the_next_command_with_it(
    desk: Desk, bell: Bell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_MAX_RETRY", 0.2)
    async with agent(_config(desk.servers.leaf, tmp_path / "agent")) as one:
        await desk.send("ring", n=0)
        await desk.answers(1)
        stream = (await desk.leaf.js.stream_info(desk.leaf.stream)).config
        await desk.leaf.js.update_stream({**stream, "max_bytes": 1})
        await desk.send("ring", n=1)
        await desk.send("ring", n=2)
        await until(
            lambda: (
                one.value(
                    "petiole_refused_readings_total",
                    input="commands",
                    reason="stream_full",
                    **{"class": "normal"},
                )
                > 0
            ),
            "there is no room",
        )
        await desk.leaf.js.update_stream(stream)
        answers = await desk.answers(3, 40)
    assert bell.rung == [0, 1, 2]
    assert [one.id for one in answers] == desk.sent


async def test_nothing_with_an_effect_is_run_while_the_state_file_cannot_be_written(
    desk: Desk, bell: Bell, tmp_path: Path
) -> None:
    config = _config(desk.servers.leaf, tmp_path / "agent")
    async with agent(config) as one:
        await until(lambda: _blocked(one.state_path), "no state can be written")
        await desk.send("ring", n=1)
        await desk.send("ping")
        answers = await desk.answers(2)
    assert bell.rung == []
    assert [one.outcome.value for one in answers] == ["failed", "done"]
    assert "the state file cannot be written" in answers[0].text


def _config(server: Leaf, state_dir: Path) -> Config:
    """An agent whose stream leaves room for the mirror."""
    return leaf_config(server, state_dir, stream=StreamClass(max_bytes=Size(2**28)))


def _blocked(path: Path) -> bool:
    """Put a directory where the file is to be; it may be written in between."""
    with contextlib.suppress(FileExistsError, IsADirectoryError):
        path.unlink(missing_ok=True)
        path.mkdir()
    return path.is_dir()


async def _answers(js: JetStream) -> bool:
    try:
        await js.api(f"STREAM.INFO.{COMMANDS}", timeout=1.0)
    except JetStreamError:
        return False
    return True
