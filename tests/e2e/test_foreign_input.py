"""An input that another package brings, in an agent that runs while the package is broken, installed, broken
again and corrected."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from agent.contract import DEFAULT_CLASS
from agent.demo import plan
from agent.demo.loopback import free_port
from tests.harness.agent_process import Agent
from tests.harness.foreign_inputs import ENDLESS, GOOD, UNTIDY, installed
from tests.harness.wait import wait_for


def test_a_broken_package_is_refused_at_a_reload_and_its_input_runs_once_it_is_corrected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    monkeypatch.setenv("PYTHONPATH", str(site))
    member = plan.member(tmp_path, "edge-1")
    base = plan.leaf_toml(member, free_port()).partition("[[input]]")[0]
    leaf = Agent(member, base)

    def reload(text: str, said: str) -> None:
        before = leaf.log.read_text().count(said)
        member.config.write_text(f"{base}{text}")
        assert leaf.process is not None
        leaf.process.send_signal(signal.SIGHUP)
        wait_for(lambda: leaf.log.read_text().count(said) > before, said)
        assert leaf.status_of("/readyz") == 200

    def stored() -> float:
        return leaf.metric("petiole_stored_readings_total", input="ping")

    try:
        leaf.start()
        reload('[[input]]\ntype = "ping"\n', "is not a type of input; give one of")
        installed(site, "import sys; sys.exit(3)")
        reload('[[input]]\ntype = "ping"\n', "of petiole-ping 1.2 cannot be imported")
        installed(site, GOOD.replace("await intake", "raise OSError('unplugged')\n            await intake"))
        reload('[[input]]\ntype = "ping"\ninterval = "2m"\n', "take at most 1m")
        reload('[[input]]\ntype = "ping"\n', "input begun: ping")
        wait_for(lambda: "unplugged" in leaf.log.read_text(), "what the input fails with is logged")
        assert leaf.status_of("/healthz") == 200
        installed(site, UNTIDY)
        reload("", "input ended: ping")
        assert leaf.end(signal.SIGTERM) == 0
        member.config.write_text(f'{base}[[input]]\ntype = "ping"\n')
        leaf.start()
        wait_for(lambda: stored() > 0, "its readings are stored")
        assert leaf.metric("petiole_unaccounted_readings") == 0
        installed(site, "raise ValueError('half written')")
        assert leaf.end(signal.SIGTERM) == 0
        assert "failed while it was stopping" in leaf.log.read_text()
        state = json.loads((member.state / "state.json").read_bytes())
        assert state["acked"][DEFAULT_CLASS]["closed"] is True, "what was under way is not settled"
        refused = leaf.petiole("run")
        assert refused.returncode == 2
        assert "'ping' of petiole-ping 1.2 cannot be imported" in refused.stderr
        assert "Traceback" not in refused.stderr
    finally:
        leaf.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_an_input_that_cannot_be_ended_does_not_keep_the_agent_from_ending_or_starting_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(installed(tmp_path / "site", ENDLESS)))
    member = plan.member(tmp_path, "edge-1")
    base = plan.leaf_toml(member, free_port()).partition("[[input]]")[0] + '[publish]\ndrain = "1s"\n'
    leaf = Agent(member, f'{base}[[input]]\ntype = "ping"\n')
    try:
        leaf.start()
        wait_for(lambda: leaf.metric("petiole_stored_readings_total", input="ping") > 0, "it is stored")
        if number is signal.SIGTERM:
            assert leaf.end(number) == 1
        else:
            member.config.write_text(base)
            assert leaf.process is not None
            leaf.process.send_signal(number)
            wait_for(lambda: leaf.log.read_text().count('"event": "started"') == 2, "it starts again")
            wait_for(lambda: leaf.status_of("/readyz") == 200, "it is ready")
            assert leaf.end(signal.SIGTERM) == 0
            assert "ping cannot be ended" in leaf.log.read_text()
        assert "agent not ended in time" in leaf.log.read_text()
    finally:
        leaf.close()
