"""`petiole status` of a leaf whose key the hub does not know."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner, Result

from agent.cli.main import app
from agent.demo import plan
from agent.demo.ports import free_port
from tests.harness.agent_process import Agent
from tests.harness.wait import wait_for


def says(leaf: Agent, *options: str) -> Result:
    """What `petiole status` says of a leaf."""
    return CliRunner().invoke(app, ["status", *options, "-c", str(leaf.member.config)])


def test_a_key_that_the_hub_refuses_is_a_case_for_somebody_and_an_unreachable_hub_is_not(
    tmp_path: Path,
) -> None:
    port = free_port()
    mine, other = (plan.member(tmp_path, domain) for domain in ("edge-1", "edge-2"))
    leaf, known = (Agent(one, plan.leaf_toml(one, port)) for one in (mine, other))
    leaf.petiole("enrol")
    member = plan.member(tmp_path, "hub")
    hub = Agent(member, plan.hub_toml(member, port, [known.petiole("enrol").stdout]))
    try:
        leaf.start()
        wait_for(lambda: leaf.status()["link"]["state"] == "down", "the link is down")
        ended = says(leaf)
        assert (ended.exit_code, "refuses the key" in ended.stdout) == (0, False), ended.output
        hub.start()
        ended = says(leaf)
        assert ended.exit_code == 3, ended.output
        assert "refuses the key of edge-1 (Authorization Violation); let it in" in ended.stdout
        assert "petiole enrol" in json.loads(says(leaf, "--json").stdout)["refusal"]
    finally:
        leaf.close()
        hub.close()
