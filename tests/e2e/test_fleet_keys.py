"""The life of a device, from its first key to its end, with the commands that a person uses."""

from __future__ import annotations

import signal
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent.cli.main import app
from agent.contract import Exit
from agent.demo import plan
from agent.demo.ports import free_port
from tests.agent_process import Agent, wait_for

READING = b'{"device":"pump-7","metric":"pressure","value":2.4}'


def petiole(*command: str, stdin: str = "", code: int = Exit.WELL) -> str:
    """What a command prints, all of it."""
    done = CliRunner().invoke(app, command, input=stdin)
    assert done.exit_code == code, done.output
    return done.output


class Pair:
    """A hub that knows no leaf, and a leaf."""

    def __init__(self, directory: Path) -> None:
        hub, leaf, leaf_port = plan.member(directory, "hub"), plan.member(directory, "edge-1"), free_port()
        self.hub = Agent(hub, plan.hub_toml(hub, leaf_port, []))
        # Without inputs that send by themselves, so that what is at the hub can be counted.
        self.leaf = Agent(leaf, plan.leaf_toml(leaf, leaf_port).partition('[[input]]\ntype = "file"')[0])
        self.sent = 0

    def fleet(self, verb: str, *arguments: str, stdin: str = "", code: int = Exit.WELL) -> str:
        """What `petiole fleet` does with the hub's configuration."""
        return petiole("fleet", verb, *arguments, "-c", str(self.hub.member.config), stdin=stdin, code=code)

    def key(self, *options: str) -> str:
        """What the leaf prints of itself."""
        return petiole("enrol", "-c", str(self.leaf.member.config), *options)

    def post(self) -> None:
        """Store a reading on the leaf."""
        self.sent += 1
        assert self.leaf.post(READING, f"a-{self.sent}") == 204

    def held(self) -> int:
        """How many messages the hub holds."""
        return int(self.hub.status()["fleet"]["aggregates"]["TELEMETRY_0"]["last"])

    def arrives(self, messages: int) -> None:
        """So many messages are at the hub, and no more."""
        wait_for(lambda: self.held() >= messages, "the hub holds what the leaf stored")
        assert self.held() == messages

    def linked(self) -> bool:
        """Whether the leaf has its link."""
        return bool(self.leaf.status()["link"]["linked"])


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    one = Pair(tmp_path)
    try:
        one.hub.start()
        yield one
    finally:
        one.leaf.close()
        one.hub.close()


def test_a_device_is_let_in_shut_out_let_in_with_another_key_and_forgotten(pair: Pair) -> None:
    server = pair.hub.server()
    assert "edge-1 is let in" in pair.fleet("add", "-", stdin=pair.key())
    pair.leaf.start()
    pair.post()
    pair.arrives(2)  # with the ledger of the start

    assert "edge-1 is let in no more" in pair.fleet("revoke", "edge-1")
    wait_for(lambda: not pair.linked(), "its link is cut")
    assert "revoked" in pair.hub.status()["fleet"]["leaves"]["edge-1"]["state"]
    pair.post()
    old = tomllib.loads(pair.key())["leaf"][0]["key"]
    assert "was revoked" in pair.fleet("replace", "edge-1", old, code=Exit.USAGE)

    new = tomllib.loads(pair.key("--new"))["leaf"][0]["key"]
    assert "its new key only" in pair.fleet("replace", "edge-1", new)
    assert not pair.linked()
    assert pair.held() == 2
    assert pair.leaf.end(signal.SIGTERM) == 0
    pair.leaf.start()
    pair.arrives(5)  # the second reading, and the ledgers of the stop and the start

    assert "its readings stay" in pair.fleet("forget", "edge-1")
    fleet = pair.hub.status()["fleet"]
    assert fleet["leaves"] == {}
    wait_for(lambda: pair.hub.status()["fleet"]["aggregates"]["TELEMETRY_0"]["sources"] == 0, "its source")
    wait_for(lambda: not pair.linked(), "its link is cut")
    assert pair.held() == 5
    assert "its readings stay" in pair.fleet("forget", "edge-1"), "what is forgotten may be forgotten again"
    assert pair.hub.server() == server, "all that by reloading the hub's server"


def test_what_cannot_be_taken_in_leaves_the_file_and_the_running_hub_as_they_are(pair: Pair) -> None:
    before = pair.hub.member.config.read_text()
    assert "not a public key" in pair.fleet("add", "edge-1", "UX", code=Exit.USAGE)
    key = tomllib.loads(pair.key())["leaf"][0]["key"]
    assert "petiole itself" in pair.fleet("add", "jobs", key, code=Exit.USAGE)
    assert pair.hub.member.config.read_text() == before
    pair.hub.member.config.write_text(before + "nonsense = 1\n")
    assert pair.hub.process is not None
    pair.hub.process.send_signal(signal.SIGHUP)
    assert pair.hub.status_of("/readyz") == 200
    pair.hub.member.config.write_text(before)
    pair.hub.end(signal.SIGTERM)
    assert "takes it in when it starts" in pair.fleet("add", "edge-1", key)
