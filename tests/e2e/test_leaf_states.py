"""What is wrong with a leaf, from its agent to the hub's page, `petiole fleet`, metrics and exit codes."""

from __future__ import annotations

import json
import os
import signal
import socket
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agent.cli.main import app
from agent.demo.loopback import free_port
from agent.leaf.link import announcer
from tests.harness.agent_process import Agent, hub_and_leaf
from tests.harness.clocks import SECOND, FakeMachine
from tests.harness.linked_pair import LinkedPair, open_linked_pair
from tests.harness.servers import ServerPair
from tests.harness.wait import until, wait_for

YEARS = 2 * 365 * 86_400


class Fleet:
    """A hub and the leaf `edge-1`; its class `normal` refuses what has no room, its class `bulk` discards."""

    def __init__(self, hub: Agent, leaf: Agent, bulk_port: int, spare_port: int) -> None:
        self.hub, self.leaf, self.bulk_port, self.spare_port = hub, leaf, bulk_port, spare_port

    def says(self, side: Agent, *words: str) -> tuple[int, str]:
        """The exit code of a command, and what it prints."""
        ended = CliRunner().invoke(app, [*words, "-c", str(side.member.config)])
        return ended.exit_code, ended.stdout

    def row(self) -> tuple[int, dict[str, Any]]:
        """The exit code of `petiole fleet`, and its row."""
        code, text = self.says(self.hub, "fleet", "--json")
        return code, json.loads(text)["leaves"][0]

    def has(self, *words: str) -> bool:
        """Whether the hub shows these states of the leaf, in its status and in its metrics."""
        row = self.row()[1]
        counted = {
            word for word in words if self.hub.metric("petiole_leaf_state", domain="edge-1", state=word)
        }
        return set(words) <= set(row["words"]) and counted == set(words)

    def command(self, name: str, *arguments: str) -> None:
        """Send one to the leaf."""
        assert self.says(self.hub, "command", "edge-1", name, *arguments, "--wait", "0s")[0] == 0

    def fill_bulk(self) -> None:
        """Store more in the class `bulk` than it holds."""
        for _ in range(30):
            body = json.dumps({"device": "d", "metric": "m", "value": os.urandom(10_000).hex()}).encode()
            headers = {"Content-Type": "application/json"}
            request = urllib.request.Request(f"http://127.0.0.1:{self.bulk_port}/v1/readings", body, headers)
            assert urllib.request.urlopen(request).status == 204

    def fill_normal(self) -> None:
        """Store until the class `normal` refuses."""
        codes = {204}
        for number in range(40):
            reading = {"device": "d", "metric": "m", "value": os.urandom(10_000).hex()}
            codes.add(self.leaf.post(json.dumps(reading).encode(), f"fill-{number}"))
        assert codes == {204, 429}


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """Running, and what the leaf stores flows."""
    with hub_and_leaf(tmp_path, http_only=True) as (hub, leaf):
        config, bulk_port, spare_port = leaf.member.config, free_port(), free_port()
        text = config.read_text().replace('max_bytes = "512MiB"', 'max_bytes = "256KiB"')
        more = f"""
[[class]]
name = "bulk"
max_bytes = "256KiB"
discard = "old"

[[input]]
type = "http"
name = "bulk"
class = "bulk"
listen = "127.0.0.1:{bulk_port}"

[[input]]
type = "http"
name = "spare"
listen = "127.0.0.1:{spare_port}"
"""
        config.write_text(text + more)
        at_hub = hub.member.config
        at_hub.write_text(at_hub.read_text().replace('["normal"]', '["normal", "bulk"]'))
        one = Fleet(hub, leaf, bulk_port, spare_port)
        hub.start()
        yield one


def test_a_leaf_that_holds_back_or_loses_readings_is_not_said_to_flow(fleet: Fleet) -> None:
    fleet.leaf.start()
    wait_for(lambda: fleet.has("flowing"), "the leaf flows")
    assert fleet.row()[0] == 0

    fleet.command("pause-link", "for=10m")
    wait_for(lambda: fleet.has("paused"), "the hub knows that the link is paused")
    assert (fleet.row()[0], fleet.row()[1]["state"]) == (0, "paused")

    fleet.fill_normal()
    wait_for(lambda: fleet.has("held"), "the hub knows that the leaf refuses")
    assert (fleet.row()[0], fleet.row()[1]["state"]) == (3, "held")
    code, said = fleet.says(fleet.leaf, "status")
    assert code == 3
    assert "readings are held back: class normal: its stream has no room" in said
    assert fleet.leaf.status_of("/readyz") == 200, "the class bulk takes readings"

    fleet.fill_bulk()
    wait_for(lambda: fleet.has("losing", "held"), "the hub knows that the leaf has discarded readings")
    code, row = fleet.row()
    assert (code, row["state"]) == (3, "losing")
    assert "of class bulk; the audit names them" in row["sentence"]
    with urllib.request.urlopen(f"http://127.0.0.1:{fleet.hub.member.admin_port}/fleet") as page:
        assert b'class="word bad">losing<' in page.read()

    fleet.command("resume-link")
    wait_for(lambda: fleet.row()[1]["words"] == ["losing"], "what went stays said")

    fleet.hub.end(signal.SIGTERM)
    fleet.hub.start()
    wait_for(lambda: fleet.has("losing"), "a hub that was started again knows it of its records")
    fleet.leaf.end(signal.SIGKILL)
    fleet.leaf.start()
    wait_for(lambda: "of class bulk" in fleet.says(fleet.leaf, "status")[1], "the next agent remembers it")


def test_an_input_that_is_down_is_told_at_the_hub(fleet: Fleet) -> None:
    with socket.create_server(("127.0.0.1", fleet.spare_port)):
        fleet.leaf.start()
        wait_for(lambda: fleet.row()[1]["words"] == ["input_down"], "the hub knows that an input is down")
        code, row = fleet.row()
        assert (code, row["state"], fleet.has("input_down")) == (1, "input_down", True)
        taken = f"127.0.0.1:{fleet.spare_port} is taken by another program"
        assert row["sentence"].startswith(f"input spare (input failed and is retried: {taken}")
        assert fleet.says(fleet.leaf, "status")[0] == 1


@pytest.fixture
async def pair(servers: ServerPair, tmp_path: Path) -> AsyncIterator[LinkedPair]:
    async with open_linked_pair(servers, tmp_path / "state") as one:
        yield one


async def test_a_clock_that_is_two_years_ahead_is_told_on_both_sides_until_it_is_set(
    pair: LinkedPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = FakeMachine()
    monkeypatch.setattr(announcer, "machine", machine)

    def said() -> tuple[str, str]:
        pair.agent.leaf.link.controller.announce_now()
        leaf = pair.registrar.status()["leaves"][pair.config.domain]
        return leaf["word"], leaf["state"]

    await until(lambda: said()[0] == "flowing", "it flows")
    machine.behind = -YEARS * SECOND
    about = "the leaf's clock is 730 days ahead of the hub's: set the wrong one right"
    await until(lambda: said() == ("clock_wrong", about), "the hub knows")
    assert pair.agent.leaf.status()["states"] == {"clock_wrong": "730 days ahead of"}
    assert pair.agent.value("petiole_clock_ahead_seconds") == pytest.approx(YEARS, abs=30)
    machine.behind = 0
    await until(lambda: said()[0] == "flowing", "the clock was set")
