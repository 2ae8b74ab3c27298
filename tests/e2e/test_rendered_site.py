"""A site as it is rendered, brought up as its README says, with servers that no agent runs."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from typer.testing import CliRunner

from agent.base.nats_server import find_binary
from agent.cli.main import app
from agent.demo import plan
from agent.demo.loopback import free_port
from tests.harness.agent_process import Agent
from tests.harness.wait import wait_for

READING = b'{"device":"pump-7","metric":"pressure","value":2.4}'
SITE = """
tenants = ["acme"]

[hub]
urls = ["nats-leaf://127.0.0.1:{leaf_port}"]
state_dir = "{hub.state}"
store_dir = "{hub.directory}/store"
max_file_store = "2GiB"
config = {{ registrar = {{ max_bytes = "512MiB" }}, admin = {{ listen = "127.0.0.1:{hub.admin_port}" }} }}
server = [{{ listen = "127.0.0.1:{hub.nats_port}", leaf_listen = "127.0.0.1:{leaf_port}" }}]

[leaves]
listen = "127.0.0.1:{leaf.nats_port}"
state_dir = "{leaf.state}"
store_dir = "{leaf.directory}/store"
max_file_store = "2GiB"

[leaves.config]
class = [{{ name = "normal", max_bytes = "512MiB" }}]
admin = {{ listen = "127.0.0.1:{leaf.admin_port}" }}
input = [{{ type = "http", listen = "127.0.0.1:{leaf.http_port}" }}]

[[leaf]]
domain = "edge-1"
tenant = "{tenant}"
"""


class Site:
    """A hub and a leaf, from one topology file."""

    def __init__(self, directory: Path, tenant: str) -> None:
        self.file, self.out = directory / "site.toml", directory / "out"
        hub, leaf, leaf_port = plan.member(directory, "hub"), plan.member(directory, "edge-1"), free_port()
        self.file.write_text(SITE.format(hub=hub, leaf=leaf, leaf_port=leaf_port, tenant=tenant))
        self.petiole("render", str(self.file), "--out", str(self.out))
        self.hub = self._agent(hub, "hub")
        self.leaf = self._agent(leaf, "leaf-edge-1")

    def petiole(self, *command: str) -> str:
        """What a command prints that must go well."""
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
        return done.stdout

    def enrol(self, one: Agent, *options: str) -> str:
        """The key of a machine, made there."""
        said = self.petiole("enrol", "-c", str(one.member.config), *options)
        assert re.search(r"\bS[A-Z2-7]{57}\b", said) is None, "a seed never leaves its files"
        assert (one.member.directory / "identity.conf").stat().st_mode & 0o777 == 0o600
        return str(tomllib.loads(said)["leaf"][0]["key"]) if one is self.leaf else ""

    def install(self, one: Agent, name: str) -> None:
        """Put the rendered files where a machine has them."""
        one.member.config.write_text((self.out / f"{name}.toml").read_text())
        (one.member.directory / "nats.conf").write_text((self.out / f"{name}.conf").read_text())

    def _agent(self, member: plan.Member, name: str) -> Agent:
        agent = Agent(member, "")
        self.install(agent, name)
        return agent


@contextmanager
def serving(one: Agent) -> Iterator[subprocess.Popen[bytes]]:
    """The server of a machine, from its rendered configuration."""
    configuration = one.member.directory / "nats.conf"
    checked = subprocess.run(
        [str(find_binary()), "-t", "-c", str(configuration)], capture_output=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
    with (one.member.directory / "nats.log").open("wb") as log:
        server = subprocess.Popen([str(find_binary()), "-c", str(configuration)], stderr=log)

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", one.member.nats_port)) == 0

    try:
        wait_for(listens, "the server listens")
        yield server
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait()


@contextmanager
def running(site: Site) -> Iterator[subprocess.Popen[bytes]]:
    """Both servers and both agents; the hub's server."""
    with ExitStack() as stack:
        server = stack.enter_context(serving(site.hub))
        stack.enter_context(serving(site.leaf))
        for one in (site.hub, site.leaf):
            stack.callback(one.close)
            one.start()
        yield server


def test_a_reading_and_a_command_cross_what_was_rendered_for_a_tenant(tmp_path: Path) -> None:
    site = Site(tmp_path, "acme")
    for one in (site.hub, site.leaf):
        key = site.enrol(one)
    with site.file.open("a") as file:
        file.write(f'key = "{key}"\n')
    told = site.petiole("render", str(site.file), "--out", str(site.out))
    assert set(told.split()) & {f"{site.out}/leaf-edge-1.conf", f"{site.out}/leaf-edge-1.toml"} == set()
    site.install(site.hub, "hub")
    with running(site):
        assert site.leaf.post(READING, "a-1") == 204
        batch = site.leaf.status()["classes"]["normal"]["last"]
        wait_for(
            lambda: site.hub.status()["fleet"]["aggregates"]["TELEMETRY_0"]["last"] >= batch,
            "the hub holds what was stored",
        )
        told = site.petiole("command", "edge-1", "ping", "-c", str(site.hub.member.config))
        assert told == "done: here\n"
