"""The agent tells its supervisor what it does: over a real socket, from its start to its end."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.agent_process import Agent
from tests.harness.supervisor import Supervisor


@pytest.fixture
def supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervisor]:
    one = Supervisor(None)
    monkeypatch.setenv("NOTIFY_SOCKET", one.address)
    monkeypatch.setenv("WATCHDOG_USEC", "400000")
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    yield one
    one.close()


def test_the_supervisor_hears_of_start_reload_new_start_and_end(supervisor: Supervisor, leaf: Agent) -> None:
    leaf.start()
    assert leaf.process is not None
    assert supervisor.until("READY")["READY"] == "1"
    assert "the link to the hub is down" in supervisor.until("STATUS")["STATUS"]
    supervisor.until("WATCHDOG")

    supervisor.forget()
    text = leaf.member.config.read_text()
    leaf.member.config.write_text(text + '\n[[rule]]\nname = "none"\nmetric = "m*"\ndrop = true\n')
    leaf.process.send_signal(signal.SIGHUP)
    assert int(supervisor.until("RELOADING")["MONOTONIC_USEC"]) > 0
    supervisor.until("READY")

    leaf.member.config.write_text("nonsense")
    leaf.process.send_signal(signal.SIGHUP)
    supervisor.until("RELOADING")
    supervisor.until("READY")  # refused, and it goes on

    leaf.member.config.write_text(text + '\n[publish]\nlinger = "7ms"\n')
    supervisor.forget()
    run = leaf.status()["run"]
    leaf.process.send_signal(signal.SIGHUP)
    supervisor.until("RELOADING")
    supervisor.until("READY")
    assert leaf.status()["run"] != run
    assert not any("STOPPING" in row for row in supervisor.told)
    supervisor.until("WATCHDOG")

    assert leaf.end(signal.SIGTERM) == 0
    supervisor.until("STOPPING")
