"""A leaf that runs with a secret wherever it takes one: through its work, questions to it, faults, a reload
and its death, none of them is in what it says, shows, hands on or leaves readable."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from agent.demo import plan
from agent.demo.plan import Member
from agent.demo.ports import free_port
from agent.server.probe import process_of
from tests.agent_process import PETIOLE, wait_for
from tests.certificates import self_signed

WAIT_SECONDS = 90.0
PLANTED = {
    name: f"pl4nted-{name}-S3CRET"
    for name in ("admin", "http", "mqtt", "broker", "scrape", "link", "environment", "s3")
}
WHOLE = os.environ.get("PETIOLE_SECURITY") == "whole"
FEW = (["check"], ["status", "--json"])
MORE = (
    *(["check", "--json"], ["status"], ["enrol"], ["where", "edge-1"], ["test", "--for", "1s"]),
    *(["fleet"], ["version"], ["resend", "--missing"], ["command", "edge-1", "ping"]),
)
COMMANDS = (*FEW, *MORE) if WHOLE else FEW


class Plant:
    """The leaf, and all that it has said so far."""

    def __init__(self, directory: Path) -> None:
        self.member = plan.member(directory, "edge-1")
        self.log = directory / "agent.log"
        self.environment = {
            **os.environ,
            "PETIOLE_PASSWORD": PLANTED["environment"],
            "AWS_SECRET_ACCESS_KEY": PLANTED["s3"],
        }
        self.member.directory.mkdir()
        self.seen = directory / "environment-of-the-program"
        self.member.config.write_text(configuration(directory, self.member, self.seen))
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            command = [PETIOLE, "run", "-c", str(self.member.config)]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=self.environment)
        wait_for(lambda: self.page("/readyz", PLANTED["admin"])[0] == 200, "the agent is ready")

    def page(self, path: str, token: str = "") -> tuple[int, str]:
        anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
        url = self.member.admin_url.replace("http:", "https:") + path
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
        try:
            with urllib.request.urlopen(request, timeout=10, context=anybody) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refusal:
            return refusal.code, refusal.read().decode()
        except OSError:
            return 0, ""

    def petiole(self, *command: str) -> str:
        done = subprocess.run(
            [PETIOLE, *command, "-c", str(self.member.config)],
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS,
            env=self.environment,
            check=False,
        )
        return done.stdout + done.stderr

    @property
    def server(self) -> psutil.Process:
        pid = process_of(self.member.state / "nats" / "nats-server.conf")
        assert pid is not None
        return psutil.Process(pid)


def private(path: Path, text: str) -> str:
    path.touch(0o600)
    path.write_text(text)
    return json.dumps(str(path))


def configuration(directory: Path, member: Member, seen: Path) -> str:
    """Everything that takes a secret; the hub, the broker and what is scraped are not there."""
    files = {name: private(directory / f"{name}.secret", text) for name, text in PLANTED.items()}
    cert, key = (json.dumps(str(one)) for one in self_signed(directory))
    nowhere, mqtt_port = free_port(), free_port()
    return f"""\
domain = "edge-1"
state_dir = {json.dumps(str(member.state))}
[log]
level = "debug"
format = "json"
[nats]
listen = "127.0.0.1:{member.nats_port}"
max_file_store = "2GiB"
hub_urls = ["nats-leaf://leaf:{PLANTED["link"]}@127.0.0.1:{nowhere}"]
[nats.mqtt]
listen = "127.0.0.1:{mqtt_port}"
users = [{{ name = "plant", password_file = {files["mqtt"]} }}]
[[class]]
name = "normal"
max_bytes = "512MiB"
[admin]
listen = "127.0.0.1:{member.admin_port}"
token_file = {files["admin"]}
tls_cert = {cert}
tls_key = {key}
[[input]]
type = "http"
listen = "127.0.0.1:{member.http_port}"
token_file = {files["http"]}
[[input]]
type = "mqtt"
url = "mqtt://127.0.0.1:{nowhere}"
user = "u"
password_file = {files["broker"]}
topics = [{{ filter = "a" }}]
[[input]]
type = "prometheus"
urls = ["http://127.0.0.1:{nowhere}/metrics"]
interval = "1s"
timeout = "1s"
token_file = {files["scrape"]}
[[input]]
type = "exec"
command = ["sh", "-c", "env > {seen}; echo no reading; exit 3"]
interval = "1s"
timeout = "1s"
"""


@pytest.fixture
def leaf(tmp_path: Path) -> Iterator[Plant]:
    one = Plant(tmp_path)
    try:
        yield one
    finally:
        if one.process is not None and one.process.poll() is None:
            one.process.kill()
            one.process.wait()
        one.petiole("server", "stop")


def post(leaf: Plant, token: str) -> int:
    request = urllib.request.Request(
        f"{leaf.member.http_url}/v1/readings",
        b'{"device":"d","metric":"m","value":1}\n',
        {"Content-Type": "application/x-ndjson", "Authorization": f"Bearer {token}"},
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refusal:
        return refusal.code


def secrets(leaf: Plant) -> dict[str, str]:
    """All of them: those planted, and the seeds that the agent made."""
    seeds = {path.name: path.read_text().strip() for path in (leaf.member.state / "keys").iterdir()}
    assert len(seeds) >= 4
    return PLANTED | seeds


@pytest.mark.timeout(900)  # many programs, one after the other on a busy machine
def test_no_secret_leaves_its_file(leaf: Plant) -> None:
    leaf.start()
    said: dict[str, str] = {}
    assert (post(leaf, PLANTED["http"]), post(leaf, PLANTED["admin"])) == (204, 401)
    wait_for(leaf.seen.exists, "the program has run")
    with ThreadPoolExecutor(4) as at_once:
        names = [f"petiole {' '.join(command)}" for command in COMMANDS]
        said |= zip(names, at_once.map(lambda command: leaf.petiole(*command), COMMANDS), strict=True)
    for path in ("/metrics", "/status", "/healthz", "/readyz", "/none"):
        said[path] = leaf.page(path, PLANTED["admin"])[1] + leaf.page(path)[1]
    assert "petiole_" in said["/metrics"]
    assert leaf.process is not None
    agent = psutil.Process(leaf.process.pid)
    said["how the agent was called"] = " ".join(agent.cmdline())
    said["how the server was called"] = " ".join(leaf.server.cmdline())
    leaf.process.send_signal(signal.SIGHUP)
    leaf.server.kill()
    wait_for(lambda: leaf.page("/readyz", PLANTED["admin"])[0] == 200, "the server runs again")
    leaf.process.kill()
    leaf.process.wait()
    leaf.start()
    assert leaf.process is not None
    leaf.process.terminate()
    assert leaf.process.wait(WAIT_SECONDS) == 0
    said["the environment of a program that the agent runs"] = leaf.seen.read_text()
    said["the log"] = leaf.log.read_text()
    assert '"level": "debug"' in said["the log"]
    said["the server's log"] = (leaf.member.state / "nats" / "nats-server.log").read_text()
    found = [
        (where, name)
        for where, text in said.items()
        for name, secret in secrets(leaf).items()
        if secret in text
    ]
    assert found == []
    assert open_to_others(leaf) == []


def open_to_others(leaf: Plant) -> list[Path]:
    """Files below the agent's directory that others may read, of those that hold a secret."""
    hidden = [secret.encode() for secret in secrets(leaf).values()]
    return [
        path
        for path in leaf.member.state.rglob("*")
        if path.is_file() and path.stat().st_mode & 0o077 and any(one in path.read_bytes() for one in hidden)
    ]
