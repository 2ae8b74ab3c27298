"""A hub and a leaf whose keys are handled with the commands that a person uses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent.cli.main import app
from agent.contract import Exit
from agent.demo import plan
from agent.demo.loopback import free_port
from tests.harness.agent_process import Agent
from tests.harness.wait import wait_for

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
    """The hub runs."""
    pair = Pair(tmp_path)
    try:
        pair.hub.start()
        yield pair
    finally:
        pair.leaf.close()
        pair.hub.close()
