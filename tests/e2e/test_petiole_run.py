"""`petiole run` as its users run it: a process of its own, with an embedded server, that reports to its
supervisor over a real socket from its start to its end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from agent.demo import plan
from agent.demo.loopback import free_port
from agent.testing.stored_stream import stored_readings
from tests.harness.agent_process import PETIOLE, Agent, Supervisor
from tests.harness.wait import SERVER_RETRY_SECONDS, wait_for

READING = b'{"device":"pump-7","metric":"pressure","value":2.4}'


def test_all_problems_of_a_configuration_are_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "petiole.toml"
    path.write_text(
        'domain = "edge.1"\nstate_dri = "/x"\n[publish]\nlinger = "soon"\n[[input]]\ntype = "htpp"\n'
    )
    ended = subprocess.run([PETIOLE, "run", "-c", path], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    for part in ("edge.1", "state_dri", "state_dir", "linger", "htpp", "http"):
        assert part in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_reading_is_taken_once_however_often_and_whatever_dies(leaf: Agent) -> None:
    leaf.start()
    server = leaf.server()
    assert leaf.post(READING, "a-1") == 204
    leaf.end(signal.SIGKILL)
    assert leaf.server() == server, "the server outlives its agent"
    leaf.start()
    assert leaf.server() == server, "the next agent takes the server over"
    assert leaf.post(READING, "a-1") == 204
    assert leaf.post(READING, "a-2") == 204
    stored = leaf.metric("petiole_stored_readings_total", input="http")
    assert stored == 1, "of the two requests of this run, one was stored before"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_leaves_the_server_running_until_it_is_stopped(
    leaf: Agent, number: signal.Signals
) -> None:
    leaf.start()
    assert leaf.post(READING, "a-1") == 204
    server = leaf.server()
    assert leaf.end(number) == 0
    state = json.loads((leaf.member.state / "state.json").read_bytes())
    assert state["acked"]["normal"]["closed"] is True
    assert server is not None
    assert psutil.pid_exists(server)
    assert leaf.petiole("server", "stop").stdout == f"the server is stopped (process {server})\n"
    assert leaf.server() is None
    assert leaf.petiole("server", "stop").stdout == f"no server runs for {leaf.member.state / 'nats'}\n"


def test_an_agent_whose_log_takes_nothing_goes_on(leaf: Agent) -> None:
    """As where its standard error is a file on a full disk, or a pipe that nobody reads any more."""
    # What Python itself buffers is tried again at its end.
    buffered = {name: text for name, text in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with Path("/dev/full").open("wb") as full:
        command = [PETIOLE, "run", "-c", str(leaf.member.config)]
        leaf.process = subprocess.Popen(command, stderr=full, text=True, env=buffered)
    wait_for(lambda: leaf.status_of("/readyz") == 200, "the agent is ready")
    run = leaf.status()["run"]
    assert leaf.post(READING, "a-1") == 204
    leaf.member.config.write_text('publish.linger = "20ms"\n' + leaf.member.config.read_text())
    leaf.process.send_signal(signal.SIGHUP)
    wait_for(lambda: leaf.status_of("/readyz") == 200 and leaf.status()["run"] != run, "it has started again")
    assert leaf.post(READING, "a-2") == 204
    assert leaf.end(signal.SIGTERM) == 0


def test_two_agents_do_not_share_a_state_directory(leaf: Agent) -> None:
    leaf.start()
    text = leaf.member.config.read_text()
    other = plan.member(leaf.member.directory, "other")
    for mine, theirs in (
        (leaf.member.http_port, other.http_port),
        (leaf.member.admin_port, other.admin_port),
    ):
        text = text.replace(str(mine), str(theirs))
    leaf.member.config.write_text(text)
    ended = leaf.petiole("run")
    assert ended.returncode == 1, "a supervisor tries it again"
    assert "petiole already runs here" in ended.stderr


def test_a_class_that_is_removed_is_named_as_long_as_the_hub_may_lack_readings_of_it(leaf: Agent) -> None:
    """Its stream flows no more, and no ledger that comes to the hub speaks of it."""
    toml, http = leaf.member.config.read_text(), '[[input]]\ntype = "http"\n'
    calm, fast, slow = (
        f'[[class]]\nname = "{name}"\nmax_bytes = "16MiB"\n\n' for name in ("calm", "fast", "slow")
    )
    rule = '\n[[rule]]\nmetric = "level"\nclass = "slow"\n'
    every = toml.replace(http, f'{calm}{fast}{slow}{http}class = "fast"\n') + rule
    leaf.member.config.write_text(every)
    leaf.start()
    assert leaf.post(READING, "a-1") == 204
    assert leaf.post(READING.replace(b"pressure", b"level"), "a-2") == 204

    def restarted(config: str, last: str = "") -> subprocess.CompletedProcess[str]:
        """What `status` says without these classes, once the `last` of them by name is checked."""
        assert leaf.end(signal.SIGTERM) == 0
        leaf.member.config.write_text(config)
        leaf.start()
        wait_for(lambda: leaf.status()["link"]["state"] == "down", "the link is known to be down")
        wait_for(lambda: not last or last in leaf.status()["removed_classes"], "the last one is named")
        return leaf.petiole("status")

    without = restarted(toml, "slow")
    assert without.returncode == 3
    assert re.findall(r"TEL_edge-1_(\w+) up to 0 of \d", without.stdout) == ["fast", "slow"], (
        "the stream of calm holds ledger records only"
    )
    with_fast = restarted(toml.replace(http, fast + http), "slow")
    assert with_fast.returncode == 3
    assert re.findall(r"TEL_edge-1_(\w+) up to", with_fast.stdout) == ["slow"]
    assert restarted(every).returncode == 5, "only the link is down"


def test_lines_of_a_class_that_is_removed_are_not_stored_again_after_a_kill(leaf: Agent) -> None:
    toml, lines = leaf.member.config.read_text(), leaf.member.lines
    begin = toml.index('[[input]]\ntype = "http"')
    classes, file = toml[:begin], f'[[input]]\ntype = "file"\npath = "{lines}"\n'
    fast = '[[class]]\nname = "fast"\nmax_bytes = "16MiB"\n\n'
    leaf.member.config.write_text(f'{classes}{fast}{file}class = "fast"\n')
    leaf.start()

    def write(value: int) -> None:
        with lines.open("ab") as file:
            file.write(b'{"device":"d","metric":"m","value":%d}\n' % value)

    def stored() -> float:
        return leaf.metric("petiole_stored_readings_total", input="file")

    write(1)
    wait_for(lambda: stored() == 1, "the first line is stored")
    files = ("state.json", "state.latest")
    before = {path: path.read_bytes() for path in map(leaf.member.state.joinpath, files) if path.exists()}
    write(2)
    wait_for(lambda: stored() == 2, "the second line is stored")
    leaf.end(signal.SIGKILL)
    for path, data in before.items():
        path.write_bytes(data)  # as where it was killed before they were written
    leaf.member.config.write_text(classes + file)
    leaf.start()
    write(3)
    wait_for(lambda: stored() >= 1, "what is not stored yet is")
    assert [row["value"] for row in stored_readings(leaf.member)] == [3]


def test_a_request_is_stored_once_though_its_class_is_removed_and_the_agent_killed(leaf: Agent) -> None:
    toml, http = leaf.member.config.read_text(), '[[input]]\ntype = "http"\n'
    fast = '[[class]]\nname = "fast"\nmax_bytes = "16MiB"\n\n'
    leaf.member.config.write_text(toml.replace(http, f'{fast}{http}class = "fast"\n'))
    leaf.start()
    assert leaf.post(READING, "a-1") == 204
    leaf.end(signal.SIGKILL)
    leaf.member.config.write_text(toml)
    leaf.start()
    assert leaf.post(READING, "a-1") == 204
    assert leaf.post(READING, "a-2") == 204
    assert leaf.metric("petiole_stored_readings_total", input="http") == 1, "class fast has the first one"


def _reloads_when_it_is_told_to(hub: Agent, leaf: Agent) -> None:
    run, server = leaf.status()["run"], leaf.server()
    assert server is not None
    told = hub.petiole("command", "edge-1", "reload")
    assert told.stdout == "done: the configuration is valid; nothing in it has changed\n", told
    assert leaf.status()["run"] == run
    leaf.member.config.write_text('publish.linger = "20ms"\n' + leaf.member.config.read_text())
    told = hub.petiole("command", "edge-1", "reload")
    assert told.stdout.endswith("the agent restarts, for publish changed\n"), told
    wait_for(lambda: leaf.status_of("/readyz") == 200 and leaf.status()["run"] != run, "another run")
    assert leaf.process is not None
    assert leaf.process.poll() is None
    assert leaf.server() == server
    os.kill(server, signal.SIGKILL)
    wait_for(lambda: leaf.server() not in (None, server), "the server is started again")
    wait_for(lambda: not psutil.pid_exists(server), "nothing is left of the one that was killed")
    ping = ("command", "edge-1", "ping", "--wait", f"{SERVER_RETRY_SECONDS}s")
    assert hub.petiole(*ping, seconds=SERVER_RETRY_SECONDS).stdout == "done: here\n"


def test_a_reading_reaches_the_hub_and_the_registrar_confirms_it(leaf: Agent, tmp_path: Path) -> None:
    hub_member, leaf_port = plan.member(tmp_path, "hub"), free_port()
    leaf.member.config.write_text(plan.leaf_toml(leaf.member, leaf_port))
    enrolled = leaf.petiole("enrol")
    assert enrolled.returncode == 0
    assert re.search(r"\bS[A-Z2-7]{57}\b", enrolled.stdout) is None, "a seed never leaves its file"
    hub = Agent(hub_member, plan.hub_toml(hub_member, leaf_port, [enrolled.stdout]))
    try:
        hub.start()
        leaf.start()
        assert leaf.post(READING, "a-1") == 204
        stored = leaf.status()["classes"]["normal"]["last"]
        wait_for(
            lambda: leaf.status()["classes"]["normal"]["confirmed"] > stored,
            "the hub has confirmed what was stored",
        )
        assert leaf.status()["link"]["linked"] is True
        assert "edge-1" in json.dumps(hub.status()["fleet"])
        _reloads_when_it_is_told_to(hub, leaf)
        assert hub.end(signal.SIGTERM) == 0
    finally:
        hub.close()


def test_the_status_says_how_the_link_is_and_that_nobody_answers(leaf: Agent) -> None:
    away = leaf.petiole("status")
    assert away.returncode == 5
    assert "does not answer" in away.stderr
    leaf.start()
    wait_for(lambda: leaf.status()["link"]["state"] == "down", "the link is known to be down")
    said = leaf.petiole("status")
    assert said.returncode == 5, "the hub cannot be reached"
    assert said.stdout.startswith("edge-1: the link to the hub is down")
    wait_for(lambda: leaf.status()["link"]["cause"], "the cause is found")
    (where,) = [word for word in leaf.member.config.read_text().split('"') if word.startswith("nats-leaf://")]
    cause = f"the link to the hub is down ({where}: it cannot be reached (Connection refused)): readings are"
    assert cause in leaf.petiole("status").stdout
    assert leaf.log.read_text().count(cause) == 1, "it is logged once"
    assert "time to first loss: " in said.stdout
    assert json.loads(leaf.petiole("status", "--json").stdout)["link"]["state"] == "down"


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
    told = supervisor.until("STOPPING")
    assert int(told["EXTEND_TIMEOUT_USEC"]) > 20e6, "it may drain for longer than the unit says"


def test_the_sender_of_the_documents_waits_for_the_agent_and_reports_a_refusal(leaf: Agent) -> None:
    block, _ = re.findall(r"```python\n(.*?)```", Path("docs/reading.md").read_text(), re.DOTALL)
    sender = block.replace("http://127.0.0.1:8080", leaf.member.http_url)
    sending = subprocess.Popen([sys.executable, "-c", sender])
    leaf.start()
    assert sending.wait(60) == 0
    assert leaf.metric("petiole_stored_readings_total", input="http") == 1
    refused = [sys.executable, "-c", sender.replace("2.4", "None")]
    said = subprocess.run(refused, capture_output=True, text=True, check=False, timeout=60).stderr
    assert "value must be a finite number" in said
