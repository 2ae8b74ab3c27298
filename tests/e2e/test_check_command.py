"""`petiole check` as its users run it, beside agents with embedded servers, and beside a server that says of
itself that it is unhealthy: a finding only where that lasts."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from typer.testing import CliRunner

from agent.cli.checks import local_probe
from agent.cli.main import app
from agent.server.watch import ask_server
from tests.harness.agent_process import Agent, hub_and_leaf
from tests.harness.check_cases import bad, check, config_of
from tests.harness.servers import Leaf, ServerPair
from tests.harness.streams import make_leaf_stream
from tests.harness.wait import wait_for


@pytest.fixture
def members(tmp_path: Path) -> Iterator[tuple[Agent, Agent]]:
    """A leaf and its hub, neither of which runs."""
    with hub_and_leaf(tmp_path) as (hub, leaf):
        yield leaf, hub


def checked(one: Agent, *options: str) -> tuple[int, list[dict[str, Any]]]:
    """The exit code and the findings of a check, in this process, which has all of it loaded."""
    ended = CliRunner().invoke(app, ["check", "--json", *options, "-c", str(one.member.config)])
    report = json.loads(ended.stdout)
    assert report["exit"] == ended.exit_code
    return ended.exit_code, report["findings"]


def failures(findings: list[dict[str, Any]]) -> list[str]:
    return [one["sentence"] for one in findings if one["level"] == "failure"]


def test_a_hub_and_a_leaf_are_well_until_something_is_wrong(members: tuple[Agent, Agent]) -> None:
    leaf, hub = members
    code, findings = checked(leaf, "--offline")
    assert (code, failures(findings)) == (0, []), "nothing runs yet, and nothing is asked"
    code, findings = checked(leaf)
    assert code == 5
    assert [one for one in failures(findings) if "local server" in one] == [], "it is down with the agent"
    assert any("the agent does not answer" in one for one in failures(findings))
    hub.start()
    leaf.start()
    wait_for(lambda: leaf.status()["link"]["state"] == "flowing", "the link flows")
    for one in members:
        code, findings = checked(one)
        assert (code, failures(findings)) == (0, []), findings
    assert hub.status()["fleet"]["leaves"]["edge-1"]["state"] == "flowing", "nobody was taken for a rival"
    ended = leaf.petiole("check")
    assert ended.returncode == 0
    assert "\x1b" not in ended.stdout
    assert all(len(line) <= 80 or max(map(len, line.split())) > 56 for line in ended.stdout.splitlines())
    server = leaf.server()
    assert server is not None
    os.kill(server, signal.SIGSTOP)
    try:
        code, findings = checked(leaf)
    finally:
        os.kill(server, signal.SIGCONT)
    assert code == 5
    assert any("says nothing" in one for one in failures(findings))


def test_a_mistake_of_the_file_hides_none_that_only_an_input_finds(tmp_path: Path) -> None:
    path = tmp_path / "petiole.toml"
    path.write_text(
        'domain = "edge-1"\nstate_dri = "/x"\n[nats]\nhub_urls = ["nats-leaf://h:1"]\n'
        '[[input]]\ntype = "file"\npath = "/a/**"\npoll = "1ms"\n'
        '[[input]]\ntype = "mqtt"\nurl = "x"\ntopics = []\n[[input]]\ntype = "htp"\n'
    )
    ended = CliRunner().invoke(app, ["check", "--json", "-c", str(path)])
    said = [one["sentence"] for one in json.loads(ended.stdout)["findings"]]
    assert ended.exit_code == 2
    for word in ("state_dri", "poll is", "wildcard **", "url 'x' does not name a server", "input[3].type"):
        assert any(word in one for one in said), (word, said)
    assert not any("can be used" in one for one in said)


def test_a_bad_file_is_told_with_all_its_problems_and_their_remedies(tmp_path: Path) -> None:
    path = tmp_path / "petiole.toml"
    path.write_text('domain = "edge.1"\nstate_dri = "/x"\n[publish]\nlinger = "soon"\n')
    ended = CliRunner().invoke(app, ["check", "--json", "-c", str(path)])
    findings = json.loads(ended.stdout)["findings"]
    assert ended.exit_code == 2
    assert {one["sentence"].partition(":")[0] for one in findings} >= {
        "domain",
        "state_dri",
        "publish.linger",
    }
    assert [one["remedy"] for one in findings if "state_dri" in one["sentence"]] == [
        "did you mean state_dir?"
    ]
    absent = CliRunner().invoke(app, ["check", "-c", str(tmp_path / "no.toml")])
    assert absent.exit_code == 2
    assert "no.toml: cannot be read" in " ".join(absent.stdout.split())


STALL_SECONDS = 0.5
UNHEALTHY = "the server says of itself"


class Answers:
    """What the real server has answered to HEALTHZ; `after` runs after the first answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, after: Callable[[], None]) -> None:
        self.seen: list[int] = []
        self._after = after
        monkeypatch.setattr(local_probe, "ask_server", self.ask)

    async def ask(self, nc: Client, question: str, server: str, seconds: float) -> Mapping[str, Any] | None:
        answer = await ask_server(nc, question, server, seconds)
        if question == local_probe.HEALTH:
            self.seen.append(int((answer or {}).get("status_code", 200)))
            if len(self.seen) == 1:
                self._after()
        return answer


async def _unrecovered(leaf: Leaf) -> Path:
    """Make the server unhealthy: its store has the directory of a stream that it has not recovered. Returns
    that directory."""
    await make_leaf_stream(await leaf.connect("agent"), leaf.domain, "e")
    (stream,) = leaf.config.store_dir.rglob(f"streams/TEL_{leaf.domain}_normal")
    stray = stream.with_name("stray")
    stray.mkdir()
    return stray


async def test_one_bad_answer_and_a_stall_are_no_finding(
    servers: ServerPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stray = await _unrecovered(servers.leaf)

    def recover_and_stall() -> None:
        shutil.rmtree(stray)
        servers.leaf.pause()
        asyncio.get_running_loop().call_later(STALL_SECONDS, servers.leaf.resume)

    answers = Answers(monkeypatch, recover_and_stall)
    found = await check(config_of(servers.leaf, tmp_path / "state"))
    assert answers.seen[0] >= 400
    assert answers.seen[-1] == 200
    assert not [one for one in bad(found) if one.startswith(UNHEALTHY)]


async def test_a_server_that_stays_unhealthy_is_a_finding(servers: ServerPair, tmp_path: Path) -> None:
    await _unrecovered(servers.leaf)
    found = await check(config_of(servers.leaf, tmp_path / "state"))
    assert [one for one in bad(found) if one.startswith(UNHEALTHY) and "stray" in one], bad(found)
