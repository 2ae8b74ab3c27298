"""The configuration is taken anew under load: what did not change takes no notice, nothing is lost, nobody is
turned away, and a bad file changes nothing."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.demo import plan
from agent.demo.loopback import free_port
from tests.harness.agent_process import Agent
from tests.harness.wait import wait_for

READING = b'{"metric": "m", "value": 1}'
WITHOUT_RIGHTS = (
    "setpriv",
    "--bounding-set=-dac_override,-dac_read_search",
    "--inh-caps=-dac_override,-dac_read_search",
)
"""Root who may not enter what is others'."""


def why_not() -> str | None:
    """Why root cannot give up its rights here, None where it can."""
    if os.geteuid() != 0:
        return None
    if shutil.which("setpriv") is None:
        return "setpriv is not installed (apt-get install util-linux)"
    tried = subprocess.run((*WITHOUT_RIGHTS, "true"), check=False, capture_output=True, text=True)
    return tried.stderr if tried.returncode else None


WHY_NOT = why_not()


class Load:
    """Senders that post without a pause, each request over a connection of its own; what was turned away in
    any other way than by an answer is in `broken`."""

    def __init__(self, port: int, senders: int = 3) -> None:
        self.stored = 0
        self.again = 0
        self.broken: set[str] = set()
        self._port = port
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._send, args=(n,)) for n in range(senders)]
        for one in self._threads:
            one.start()

    def _send(self, sender: int) -> None:
        for number in itertools.count():
            if self._ended.is_set():
                return
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=20)
            body = json.dumps({"metric": f"m{sender}", "value": number})
            try:
                status = self._post(connection, f"{sender}-{number}", body)
            except OSError as error:
                with self._lock:
                    self.broken.add(repr(error))
                continue
            finally:
                connection.close()
            with self._lock:
                if status == 204:
                    self.stored += 1
                else:
                    self.broken.add(str(status))

    def _post(self, connection: http.client.HTTPConnection, key: str, body: str) -> int:
        """The answer; one that was not given, or asks to come again, is asked for again under its key."""
        headers = {"Content-Type": "application/json", "Idempotency-Key": key}
        while True:
            try:
                connection.request("POST", "/v1/readings", body, headers)
                status = connection.getresponse().status
            except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                status = 503
            if status != 503:
                return status
            self.again += 1
            connection.close()

    def end(self) -> None:
        self._ended.set()
        for one in self._threads:
            one.join()


@pytest.fixture
def leaf(tmp_path: Path) -> Iterator[Agent]:
    member = plan.member(tmp_path, "edge-1")
    toml = plan.leaf_toml(member, free_port())
    toml += f'\n[[input]]\ntype = "socket"\nlisten = "tcp://127.0.0.1:{free_port()}"\n'
    agent = Agent(member, toml)
    agent.start()
    yield agent
    agent.close()


def change(leaf: Agent, before: str, after: str) -> None:
    text = leaf.member.config.read_text()
    assert before in text
    leaf.member.config.write_text(text.replace(before, after))


def hang_up(leaf: Agent) -> None:
    assert leaf.process is not None
    leaf.process.send_signal(signal.SIGHUP)


def test_what_changed_is_taken_in_under_load_and_the_rest_takes_no_notice(leaf: Agent) -> None:
    run = leaf.status()["run"]
    listen = re.search(r"tcp://127\.0\.0\.1:(\d+)", leaf.member.config.read_text())
    assert listen is not None
    lines = socket.create_connection(("127.0.0.1", int(listen[1])))
    load = Load(leaf.member.http_port)
    try:
        http_listen = f'listen = "127.0.0.1:{leaf.member.http_port}"'
        for body in ("1MiB", "2MiB", "3MiB"):
            change(leaf, http_listen, f'{http_listen}\nbody = "{body}"')
            before = load.stored
            hang_up(leaf)
            wait_for(lambda before=before: load.stored > before + 50, "readings are stored")  # type: ignore[misc]
            change(leaf, f'\nbody = "{body}"', "")
        change(leaf, '[[input]]\ntype = "host"', '[[input]]\ntype = "host"\nname = "machine"')
        hang_up(leaf)
        wait_for(lambda: "machine" in leaf.status()["inputs"], "an input goes and another comes")
        assert "host" not in leaf.status()["inputs"]
        leaf.member.config.write_text(
            leaf.member.config.read_text() + '\n[[rule]]\nname = "none"\nmetric = "m*"\ndrop = true\n'
        )
        hang_up(leaf)
        wait_for(
            lambda: leaf.metric("petiole_dropped_readings_total", rule="none") > 0, "the rule takes effect"
        )
        lines.sendall(b'{"metric": "kept", "value": 1}\n')
        wait_for(
            lambda: leaf.metric("petiole_stored_readings_total", input="socket") == 1,
            "a connection that was open before is open still",
        )
        assert leaf.status()["run"] == run
    finally:
        load.end()
        lines.close()
    assert load.broken == set()


def test_a_file_that_cannot_be_used_changes_nothing(leaf: Agent) -> None:
    run = leaf.status()["run"]
    change(leaf, 'type = "host"', 'type = "hosts"')
    hang_up(leaf)
    assert leaf.post(b'{"metric": "x", "value": 1}', "a-1") == 204
    change(leaf, 'type = "hosts"', 'type = "host"\nname = "machine"')
    hang_up(leaf)
    wait_for(lambda: "machine" in leaf.status()["inputs"], "a good one is taken afterwards")
    assert leaf.status()["run"] == run


@pytest.mark.skipif(WHY_NOT is not None, reason=f"root cannot give up its rights: {WHY_NOT}")
def test_what_cannot_be_looked_at_is_refused_and_the_agent_goes_on(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    if os.geteuid() == 0:
        os.chown(closed, 65534, -1)
    else:
        closed.chmod(0)
    member = plan.member(tmp_path, "edge-1")
    leaf = Agent(member, plan.leaf_toml(member, free_port()))
    leaf.under = WITHOUT_RIGHTS if os.geteuid() == 0 else ()
    good = member.config.read_text()
    try:
        leaf.start()
        run = leaf.status()["run"]
        without_rights = {
            f'type = "file"\npath = "{closed}/sensor"': "cannot be looked at (Permission denied)",
            f'type = "file"\npath = "{tmp_path}/{"x" * 300}"': "cannot be looked at (File name too long)",
        }
        for odd in (without_rights, {'type = "http"\nlisten = "edge..plant:8080"': "is not an address"}):
            tables = (f'\n[[input]]\nname = "odd-{number}"\n{added}\n' for number, added in enumerate(odd))
            member.config.write_text(good + "".join(tables))
            hang_up(leaf)
            for reason in odd.values():
                wait_for(lambda reason=reason: reason in leaf.log.read_text(), f"it is refused: {reason}")  # type: ignore[misc]
            checked = leaf.petiole("check", "--offline", "--json")
            findings = json.loads(checked.stdout)["findings"]
            for reason in odd.values():
                assert any(reason in one["sentence"] and one["remedy"] for one in findings)
        member.config.write_text(good.replace('type = "host"', 'type = "host"\nname = "machine"'))
        hang_up(leaf)
        wait_for(lambda: "machine" in leaf.status()["inputs"], "a good one is taken afterwards")
        assert leaf.status()["run"] == run
        assert "Traceback" not in leaf.log.read_text()
    finally:
        leaf.close()


def test_a_new_start_keeps_the_process_and_its_sockets_and_loses_nothing(leaf: Agent) -> None:
    status = leaf.status()
    load = Load(leaf.member.http_port)
    try:
        wait_for(lambda: load.stored > 50, "readings are stored")
        leaf.member.config.write_text('publish.linger = "20ms"\n' + leaf.member.config.read_text())
        hang_up(leaf)
        wait_for(
            lambda: leaf.status_of("/readyz") == 200 and leaf.status()["run"] != status["run"], "another run"
        )
        before = load.stored
        wait_for(lambda: load.stored > before + 50, "readings are stored again")
    finally:
        load.end()
    assert load.broken == set()
    assert leaf.process is not None
    assert leaf.process.poll() is None


@contextmanager
def ending_with_a_reading_under_way(leaf: Agent) -> Iterator[subprocess.Popen[str]]:
    """The agent's process while its server stands still with a reading under way. Afterwards the server goes
    on, the reading is stored and the agent ends well."""
    server = leaf.server()
    assert server is not None
    assert leaf.process is not None
    assert leaf.post(READING, "before") == 204
    os.kill(server, signal.SIGSTOP)
    posted = ThreadPoolExecutor(1).submit(leaf.post, READING, "under-way")
    try:
        wait_for(lambda: leaf.metric("petiole_in_flight_bytes") > 0, "a reading is under way")
        yield leaf.process
    finally:
        os.kill(server, signal.SIGCONT)
    assert posted.result(60) == 204
    assert leaf.process.wait(60) == 0


def test_a_reload_that_comes_while_the_agent_ends_is_left(leaf: Agent) -> None:
    with ending_with_a_reading_under_way(leaf) as process:
        process.send_signal(signal.SIGTERM)
        wait_for(lambda: '"draining"' in leaf.log.read_text(), "the agent drains")
        change(leaf, "[admin]", '[publish]\nlinger = "20ms"\n\n[admin]')
        hang_up(leaf)
        wait_for(
            lambda: "reload ignored" in leaf.log.read_text() or process.poll() is not None,
            "the agent has heard of the reload",
        )
    assert '"drained: everything accepted is stored"' in leaf.log.read_text()


def test_an_agent_that_drains_to_start_again_ends_when_it_is_told_to(leaf: Agent) -> None:
    with ending_with_a_reading_under_way(leaf) as process:
        change(leaf, "[admin]", '[publish]\nlinger = "20ms"\n\n[admin]')
        hang_up(leaf)
        wait_for(lambda: '"draining"' in leaf.log.read_text(), "the agent drains")
        process.send_signal(signal.SIGTERM)
    assert leaf.log.read_text().count('"event": "started"') == 1


def test_a_reload_that_comes_while_the_agent_starts_again_is_taken_in(leaf: Agent) -> None:
    run = leaf.status()["run"]
    change(leaf, "[admin]", '[publish]\nlinger = "20ms"\n\n[admin]')
    hang_up(leaf)
    wait_for(lambda: '"stopped"' in leaf.log.read_text(), "the agent becomes the next one")
    change(leaf, '[[input]]\ntype = "host"', '[[input]]\ntype = "host"\nname = "machine"')

    def has_started() -> bool:
        hang_up(leaf)
        return leaf.log.read_text().count('"event": "started"') == 2

    wait_for(has_started, "it has started")
    wait_for(lambda: leaf.status_of("/readyz") == 200 and leaf.status()["run"] != run, "another run")
    wait_for(lambda: "machine" in leaf.status()["inputs"], "the newest configuration holds")
