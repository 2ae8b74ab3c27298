"""`petiole test` and `petiole tap` beside a running agent: they show, and change nothing."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from agent.cli.main import app
from agent.demo import plan
from agent.demo.loopback import free_port
from tests.faults.tools.disk import missing, small_disk
from tests.harness.agent_process import PETIOLE, Agent
from tests.harness.wait import WAIT_SECONDS, wait_for

GOOD = '{"device":"pump-7","metric":"pressure","value":2.4}'
_WHY_NOT = missing()
EVIL = '{"device":"pump-8","metric":"rpm\u009b2J","value":3}'


def test_what_passes_is_shown_and_what_would_be_sent_and_neither_changes_anything(leaf: Agent) -> None:
    leaf.member.lines.write_text(f"{GOOD}\nno reading\n{GOOD}\n")
    leaf.start()
    assert leaf.post(EVIL.encode(), "a-1") == 204
    wait_for(lambda: leaf.metric("petiole_stored_readings_total", input="file") == 2, "the file is read")

    _batches_for_programs_until_the_pipe_is_closed(leaf)
    _readings_for_people_until_interrupted(leaf)
    _the_agents_own_port_is_told_and_the_other_inputs_are_shown(leaf)
    _a_file_is_read_from_its_beginning(leaf)

    with leaf.member.lines.open("a") as file:
        file.write(GOOD + "\n")
    wait_for(lambda: leaf.metric("petiole_stored_readings_total", input="file") >= 3, "the file is followed")
    assert leaf.metric("petiole_stored_readings_total", input="file") == 3
    assert leaf.metric("petiole_stored_readings_total", input="http") == 3


def asked(leaf: Agent, *command: str) -> Result:
    """What a command prints, without a process of its own."""
    return CliRunner().invoke(app, [*command, "-c", str(leaf.member.config)])


def test_an_input_that_does_not_run_is_named_by_status(leaf: Agent) -> None:
    with socket.create_server(("127.0.0.1", leaf.member.http_port)):
        leaf.start()
        wait_for(lambda: leaf.metric("petiole_input_up", input="http") == 0, "the port is taken")
        found = asked(leaf, "status")
        assert found.exit_code == 5, "the link is down, which comes before an input"
        taken = f"127.0.0.1:{leaf.member.http_port} is taken by another program"
        assert f"  input http (input failed and is retried: {taken}" in found.stdout
        assert "input file" not in found.stdout
        assert list(json.loads(asked(leaf, "status", "--json").stdout)["states"]) == ["input_down"]
        tried = asked(leaf, "test", "--input", "http", "--for", "100ms")
        assert tried.exit_code == 2
        assert f"127.0.0.1:{leaf.member.http_port} is taken by another program" in tried.stderr
    wait_for(lambda: leaf.metric("petiole_input_up", input="http") == 1, "the port is free")
    assert "input http" not in asked(leaf, "status").stdout


@pytest.mark.skipif(_WHY_NOT is not None, reason=f"no disk can be filled: {_WHY_NOT}")
def test_a_full_disk_is_told_by_status_and_is_no_success(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 32) as disk:
        member = plan.member(disk.path, "edge-1")
        leaf = Agent(member, plan.leaf_toml(member, free_port()))
        try:
            leaf.start()
            disk.fill(but=2**20)
            wait_for(lambda: leaf.metric("petiole_server_trouble") == 1, "the disk is full")
            found = asked(leaf, "status")
            assert found.exit_code == 3
            words = "server: the disk of the NATS server's store is full: "
            assert f"\n  {words}" in found.stdout
            assert f"\n{words}" in asked(leaf, "top", "--once", "--interval", "0.5").stdout
            disk.free()
            wait_for(lambda: leaf.metric("petiole_server_trouble") == 0, "there is room again")
            assert asked(leaf, "status").exit_code == 5, "only the link is down"
        finally:
            leaf.close()


def _batches_for_programs_until_the_pipe_is_closed(leaf: Agent) -> None:
    with _running(leaf, "tap", "--json", "--follow", "--input", "http", "--input", "file") as following:
        assert following.stdout is not None
        rows = [json.loads(following.stdout.readline()) for _ in range(2)]
        assert sorted((one["input"], one["count"]) for one in rows) == [("file", 2), ("http", 1)]
        following.stdout.close()
        assert leaf.post(GOOD.encode(), "a-2") == 204
        _ends_quietly(following)


def _readings_for_people_until_interrupted(leaf: Agent) -> None:
    with _running(leaf, "tap", "--follow", "--device", "pump-*", "--metric", "rpm*") as following:
        assert following.stdout is not None
        for key in ("a-1", "a-3"):
            assert leaf.post(EVIL.encode(), key) == 204, "the first is known, the second is stored"
            assert "normal http seq" in following.stdout.readline()
            assert "pump-8 rpm\\x9b2J = 3" in following.stdout.readline()
        following.send_signal(signal.SIGINT)
        _ends_quietly(following)


def _the_agents_own_port_is_told_and_the_other_inputs_are_shown(leaf: Agent) -> None:
    with _running(leaf, "test", "--for", "1m") as trying:
        assert trying.stdout is not None
        assert json.loads(trying.stdout.readline())["device"] == "edge-1", "a sample of the machine"
        trying.send_signal(signal.SIGINT)
        assert trying.wait(WAIT_SECONDS) == 2
        assert trying.stderr is not None
        said = trying.stderr.read()
        listen = f"127.0.0.1:{leaf.member.http_port}"
        assert f"input 'http': the running agent listens on {listen} for it; look with `petiole tap" in said
        assert "another program" not in said


def _a_file_is_read_from_its_beginning(leaf: Agent) -> None:
    tried = leaf.petiole("test", "--input", "file", "--from-start")
    assert tried.returncode == 3, "a line is not a reading"
    assert [json.loads(line)["device"] for line in tried.stdout.splitlines()] == ["pump-7"] * 2
    assert f"{leaf.member.lines}:" in tried.stderr
    assert "Traceback" not in tried.stderr


def test_a_path_that_matches_no_file_is_told(tmp_path: Path) -> None:
    config = tmp_path / "leaf.toml"
    config.write_text(
        'domain = "edge-1"\n[nats]\nhub_urls = ["nats-leaf://127.0.0.1:7422"]\n'
        f'[[input]]\ntype = "file"\npath = ["{tmp_path}/nothing/*.log", "{config}"]\n'
    )
    tried = CliRunner().invoke(app, ["test", "-c", str(config), "--for", "100ms"])
    assert tried.exit_code == 1
    assert f"no file matches {tmp_path}/nothing/*.log; correct the path" in tried.stderr
    assert f"no file matches {config}" not in tried.stderr


def _running(leaf: Agent, *command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [PETIOLE, *command, "-c", str(leaf.member.config)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _ends_quietly(process: subprocess.Popen[str]) -> None:
    assert process.wait(WAIT_SECONDS) == 0
    assert process.stderr is not None
    assert process.stderr.read() == ""
