"""A leaf and a hub that run with a secret wherever they take one: through their work, questions to them,
faults, a reload and their death, none of them is in what they say, show, hand on or leave readable."""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from agent.config.keys import ensure_key
from agent.demo import plan
from agent.demo.loopback import free_port
from agent.demo.plan import Member
from agent.server.hub_route import reading
from agent.testing.agent_process import AgentProcess
from tests.harness.certificates import self_signed
from tests.harness.wait import wait_for
from tests.security.hidden import leaked

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
OF_HUB = (["fleet", "--json"], ["status", "--links"], ["check"]) if WHOLE else (["fleet", "--json"],)
PAGES = ("/metrics", "/status", "/healthz", "/readyz", "/none")
OF_HUB_PAGES = (*PAGES, "/fleet", "/fleet/edge-1")


class Plant(AgentProcess):
    """The agent, with an admin server that asks for its token over TLS."""

    def __init__(self, directory: Path, domain: str) -> None:
        member, toml = plan.member(directory, domain), hub_toml if domain == "hub" else leaf_toml
        self.seen = directory / "environment-of-the-program"
        super().__init__(member, toml(directory, member, self.seen))

    def status_of(self, path: str) -> int:
        return self.page(path, PLANTED["admin"])[0]

    def is_ready(self) -> bool:
        return self.status_of("/readyz") == 200

    def page(self, path: str, token: str = "") -> tuple[int, str]:
        url = self.member.admin_url.replace("http:", "https:") + path
        return fetched(url, {"Authorization": f"Bearer {token}"} if token else {})

    def said_by(self, command: list[str]) -> str:
        done = self.petiole(*command)
        return done.stdout + done.stderr

    def answers(self, commands: Sequence[list[str]], pages: Sequence[str]) -> dict[str, str]:
        """What commands and pages say, those also to who shows no token."""
        names = [f"petiole {' '.join(command)}" for command in commands]
        with ThreadPoolExecutor(4) as at_once:
            said = zip(names, at_once.map(self.said_by, commands), strict=True)
            shown = {path: self.page(path, PLANTED["admin"])[1] + self.page(path)[1] for path in pages}
        assert "petiole_" in shown["/metrics"]
        return dict(said) | shown


def private(path: Path, text: str) -> str:
    path.touch(0o600)
    path.write_text(text)
    return json.dumps(str(path))


def common(directory: Path, member: Member) -> str:
    """What both roles have."""
    token = private(directory / "admin.secret", PLANTED["admin"])
    cert, key = (json.dumps(str(one)) for one in self_signed(directory))
    return f"""\
state_dir = {json.dumps(str(member.state))}
[log]
level = "debug"
format = "json"
[admin]
listen = "127.0.0.1:{member.admin_port}"
token_file = {token}
tls_cert = {cert}
tls_key = {key}
"""


def hub_toml(directory: Path, member: Member, seen: Path) -> str:
    """Everything of a hub that takes a secret; its leaf is not there."""
    public = ensure_key(directory / "link.secret")
    return f"""\
role = "hub"
domain = "hub"
{common(directory, member)}
[nats]
listen = "127.0.0.1:{member.nats_port}"
leaf_listen = "127.0.0.1:{free_port()}"
max_file_store = "2GiB"
[registrar]
max_bytes = "512MiB"
[[leaf]]
domain = "edge-1"
key = "{public}"
"""


def leaf_toml(directory: Path, member: Member, seen: Path) -> str:
    """Everything of a leaf that takes a secret; the hub, the broker and what is scraped are not there."""
    files = {name: private(directory / f"{name}.secret", text) for name, text in PLANTED.items()}
    nowhere, mqtt_port = free_port(), free_port()
    return f"""\
domain = "edge-1"
{common(directory, member)}
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


@contextmanager
def planted(directory: Path, domain: str, environment: pytest.MonkeyPatch) -> Iterator[Plant]:
    """An agent that is not started yet; it and its server end with the context."""
    environment.setenv("PETIOLE_PASSWORD", PLANTED["environment"])
    environment.setenv("AWS_SECRET_ACCESS_KEY", PLANTED["s3"])
    one = Plant(directory, domain)
    try:
        yield one
    finally:
        one.close()


@pytest.fixture
def leaf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plant]:
    with planted(tmp_path, "edge-1", monkeypatch) as one:
        yield one


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plant]:
    with planted(tmp_path, "hub", monkeypatch) as one:
        yield one


def fetched(url: str, headers: dict[str, str], body: bytes | None = None) -> tuple[int, str]:
    """Status and text of an answer, (0, "") without one."""
    request = urllib.request.Request(url, body, headers)
    try:
        with urllib.request.urlopen(request, timeout=30, context=reading()) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refusal:
        return refusal.code, refusal.read().decode()
    except OSError:
        return 0, ""


def post(leaf: Plant, token: str) -> int:
    headers = {"Content-Type": "application/x-ndjson", "Authorization": f"Bearer {token}"}
    body = b'{"device":"d","metric":"m","value":1}\n'
    return fetched(f"{leaf.member.http_url}/v1/readings", headers, body)[0]


def secrets(one: Plant) -> dict[str, str]:
    """All of them: those planted, the seeds that the agent made, and the key of its certificate."""
    seeds = {path.name: path.read_text().strip() for path in (one.member.state / "keys").iterdir()}
    assert len(seeds) >= 3
    key = (one.member.config.parent.parent / "key.pem").read_text().splitlines()[1]
    return PLANTED | seeds | {"the key of its certificate": key}


@pytest.mark.timeout(900)  # many programs, one after the other on a busy machine
def test_no_secret_leaves_its_file(leaf: Plant, capfd: pytest.CaptureFixture[str]) -> None:
    leaf.start()
    said: dict[str, str] = {}
    assert (post(leaf, PLANTED["http"]), post(leaf, PLANTED["admin"])) == (204, 401)
    wait_for(leaf.seen.exists, "the program has run")
    said |= leaf.answers(COMMANDS, PAGES) | called(leaf)
    assert leaf.process is not None
    leaf.process.send_signal(signal.SIGHUP)
    server_of(leaf).kill()
    wait_for(lambda: leaf.status_of("/readyz") == 200, "the server runs again")
    leaf.end(signal.SIGKILL)
    leaf.start()
    assert leaf.end(signal.SIGTERM) == 0
    said["the environment of a program that the agent runs"] = leaf.seen.read_text()
    assert '"level": "debug"' in leaf.log.read_text()
    nothing_leaked(leaf, said | {"standard output": capfd.readouterr().out})


@pytest.mark.timeout(900)
def test_no_secret_leaves_the_hub(hub: Plant, capfd: pytest.CaptureFixture[str]) -> None:
    hub.start()
    said = hub.answers(OF_HUB, OF_HUB_PAGES) | called(hub)
    assert "edge-1" in said["/fleet"]
    assert hub.process is not None
    hub.process.send_signal(signal.SIGHUP)
    wait_for(lambda: "configuration reloaded" in hub.log.read_text(), "it is looked at again")
    assert hub.end(signal.SIGTERM) == 0
    nothing_leaked(hub, said | {"standard output": capfd.readouterr().out})


def called(one: Plant) -> dict[str, str]:
    """How agent and server were called, which everybody on the machine can see."""
    assert one.process is not None
    agent = psutil.Process(one.process.pid)
    return {
        "how the agent was called": " ".join(agent.cmdline()),
        "how the server was called": " ".join(server_of(one).cmdline()),
    }


def server_of(one: Plant) -> psutil.Process:
    pid = one.server()
    assert pid is not None
    return psutil.Process(pid)


def nothing_leaked(one: Plant, said: dict[str, str]) -> None:
    """No secret is in what was said, or in a log, or in a file that others may read."""
    said["the log"] = one.log.read_text()
    assert '"event": "stopped"' in said["the log"]
    said["the server's log"] = (one.member.state / "nats" / "nats-server.log").read_text()
    assert leaked({where: text.encode() for where, text in said.items()}, secrets(one)) == []
    assert open_to_others(one) == []


def open_to_others(one: Plant) -> list[tuple[str, str]]:
    """Files below the agent's directory that others may read and that hold a secret."""
    files = (path for path in one.member.state.rglob("*") if path.is_file())
    readable = {str(path): path.read_bytes() for path in files if path.stat().st_mode & 0o077}
    return leaked(readable, secrets(one))
