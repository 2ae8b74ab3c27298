"""`petiole check` and `status` beside a real agent: they believe its own word, tell it from another one,
and name a cause once and not its consequences."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agent.cli.main import app
from agent.demo import plan
from agent.demo.loopback import free_port
from tests.faults.tools.disk import missing, small_disk
from tests.harness.agent_process import Agent
from tests.harness.wait import wait_for

DEAD = """
[[input]]
type = "exec"
command = ["/nonexistent/program"]
interval = "1s"

[[input]]
type = "prometheus"
urls = ["http://127.0.0.1:1/metrics"]
interval = "1s"
timeout = "1s"

[[input]]
type = "mqtt"
url = "mqtt://127.0.0.1:1"
topics = [{ filter = "a/#" }]
"""


@pytest.fixture
def leaf(tmp_path: Path) -> Iterator[Agent]:
    """A leaf with three dead inputs, whose hub does not run."""
    member = plan.member(tmp_path, "edge-1")
    base = plan.leaf_toml(member, free_port()).partition("[[input]]")[0]
    one = Agent(member, base + DEAD)
    try:
        yield one
    finally:
        one.close()


def asked(config: Path, *command: str) -> tuple[int, str]:
    ended = CliRunner().invoke(app, [*command, "-c", str(config)])
    return ended.exit_code, ended.output


def bad(config: Path) -> list[dict[str, Any]]:
    """What is not well of a machine whose clock a test has not set."""
    findings = json.loads(asked(config, "check", "--json")[1])["findings"]
    return [one for one in findings if one["level"] != "ok" and one["group"] != "clock"]


def test_dead_inputs_and_the_cause_of_a_dead_link_are_named_once_each(leaf: Agent) -> None:
    leaf.start()
    names = ("exec", "prometheus", "mqtt")
    wait_for(lambda: not any(leaf.metric("petiole_input_up", input=name) for name in names), "all are down")
    found = bad(leaf.member.config)
    for name, why in (
        ("exec", "/nonexistent/program"),
        ("prometheus", "127.0.0.1:1/metrics"),
        ("mqtt", "is down: "),
    ):
        named = [one["sentence"] for one in found if name in one["sentence"]]
        assert len(named) == 1, named
        assert why in named[0]
    links = [one["sentence"] for one in found if one["group"] == "link"]
    assert len(links) == 1, links
    link = links[0]
    assert "it cannot be reached (Connection refused)" in link


def test_an_agent_that_is_stopped_is_told_from_one_that_does_not_run(leaf: Agent) -> None:
    leaf.start()
    assert leaf.process is not None
    leaf.process.send_signal(signal.SIGSTOP)
    try:
        (agent,) = [one for one in bad(leaf.member.config) if one["group"] == "agent"]
    finally:
        leaf.process.send_signal(signal.SIGCONT)
    assert "timed out" in agent["sentence"]
    assert "hangs or is stopped" in agent["remedy"]
    leaf.end(signal.SIGTERM)
    (agent,) = [one for one in bad(leaf.member.config) if one["group"] == "agent"]
    assert "Connection refused" in agent["sentence"]


@pytest.mark.skipif(os.geteuid() != 0, reason="to become another user needs root")
def test_another_user_is_told_to_ask_as_the_agents_own() -> None:
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        directory.chmod(0o755)
        member = plan.member(directory, "edge-1")
        leaf = Agent(member, plan.leaf_toml(member, free_port()))
        try:
            leaf.start()
            os.setresuid(65_534, 65_534, 0)
            for options in ((), ("--offline",)):
                found = json.loads(asked(member.config, "check", "--json", *options)[1])["findings"]
                failed = [one for one in found if one["level"] == "failure" and one["group"] != "link"]
                assert [one["remedy"] for one in failed] == ["run this as the agent's user, or as root"], (
                    failed
                )
        finally:
            os.setresuid(0, 0, 0)
            leaf.close()


@pytest.mark.parametrize("other", ["domain", "state"])
def test_the_agent_of_another_configuration_is_not_taken_for_this_ones(
    leaf: Agent, other: str, tmp_path: Path
) -> None:
    leaf.start()
    text = leaf.member.config.read_text()
    second = tmp_path / "second.toml"
    old, new = (
        ('domain = "edge-1"', 'domain = "edge-2"')
        if other == "domain"
        else (
            str(leaf.member.state),
            str(tmp_path / "elsewhere"),
        )
    )
    assert old in text
    second.write_text(text.replace(old, new))
    for command in (("status",), ("top", "--once"), ("status", "--json")):
        code, said = asked(second, *command)
        assert code == 5, said
        assert "is the agent of edge-1" in said
        assert "[admin] listen" in said
    (agent,) = [one for one in bad(second) if one["group"] == "agent"]
    assert "is the agent of edge-1" in agent["sentence"]


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_state_and_store_in_memory_are_named_and_no_acknowledgement_is_said_to_survive(
    tmp_path: Path,
) -> None:
    member = plan.member(tmp_path, "edge-1")
    with small_disk(member.directory / "disk", 400) as disk:
        base = plan.leaf_toml(member, free_port()).partition("[[input]]")[0]
        http = f'[[input]]\ntype = "http"\nlisten = "127.0.0.1:{member.http_port}"\n'
        leaf = Agent(member, base.replace(str(member.state), str(disk.path / "state")) + http)
        try:
            leaf.start()
            wait_for(lambda: leaf.metric("petiole_server_synced") == 0, "the store is known")
            assert leaf.metric("petiole_state_kept") == 0
            assert "a power cut may lose it" in leaf.status()["acknowledgement"]["http"]
            named = next(one for one in bad(member.config) if "power cut" in one["sentence"])
            assert "the agent's state" in named["sentence"]
            assert "the server's store" in named["sentence"]
            assert "tmpfs is memory" in named["sentence"]
            said = asked(member.config, "status")[1]
            assert "the state in" in said
            assert "acknowledged is not kept: the store" in said
            assert "state not kept" in leaf.log.read_text()
        finally:
            leaf.close()


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_a_file_system_without_inodes_is_named_though_it_has_room(tmp_path: Path) -> None:
    member = plan.member(tmp_path, "edge-1")
    with small_disk(member.directory / "disk", 400, inodes=400) as disk:
        base = plan.leaf_toml(member, free_port()).partition("[[input]]")[0]
        leaf = Agent(member, base.replace(str(member.state), str(disk.path / "state")))
        try:
            leaf.start()
            disk.fill_inodes()
            wait_for(lambda: leaf.status_of("/readyz") == 503, "the agent sees it")
            found = bad(member.config)
            (named,) = [one for one in found if "inodes" in one["sentence"] and one["group"] == "disk"]
            assert "remove files" in named["remedy"]
            assert not any(one["group"] in ("server", "agent") for one in found), found
            disk.free()
            wait_for(lambda: leaf.status_of("/readyz") == 200, "it goes on by itself")
        finally:
            leaf.close()
