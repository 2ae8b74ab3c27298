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
from tests.harness.wait import SERVER_RETRY_SECONDS, wait_for

READING = b'{"device":"pump-7","metric":"pressure","value":2.4}'
CONFIG = """
role = "{role}"
domain = "{domain}"
state_dir = "{one.state}"
admin = {{ listen = "127.0.0.1:{one.admin_port}" }}

[nats]
server = "external"
listen = "127.0.0.1:{one.nats_port}"
seed_file = "{one.state}/keys/{name}.nk"
system_seed_file = "{one.state}/keys/{name}_system.nk"
store_dir = "{one.directory}/store"
max_file_store = "2GiB"
"""
HUB = """
leaf_listen = "127.0.0.1:{leaf_port}"

[registrar]
max_bytes = "512MiB"
"""
LEAF = """
hub_urls = ["nats-leaf://127.0.0.1:{leaf_port}"]

[link]
tenant = true

[[class]]
name = "normal"
max_bytes = "512MiB"

[[input]]
type = "http"
listen = "127.0.0.1:{one.http_port}"
"""


class Site:
    """A hub and a leaf whose servers no agent runs."""

    def __init__(self, directory: Path) -> None:
        hub, leaf, leaf_port = plan.member(directory, "hub"), plan.member(directory, "edge-1"), free_port()
        common = CONFIG.format(role="hub", domain="hub", one=hub, name="registrar")
        self.hub = Agent(hub, common + HUB.format(leaf_port=leaf_port))
        common = CONFIG.format(role="leaf", domain="edge-1", one=leaf, name="agent")
        self.leaf = Agent(leaf, common + LEAF.format(one=leaf, leaf_port=leaf_port))

    def petiole(self, one: Agent, *command: str) -> str:
        """What a command with a machine's configuration prints, which must go well."""
        done = CliRunner().invoke(app, [*command, "-c", str(one.member.config)])
        assert done.exit_code == 0, done.output
        return done.stdout

    def enrol(self, one: Agent) -> str:
        """What `petiole enrol` prints of a machine's keys."""
        said = self.petiole(one, "enrol")
        assert re.search(r"\bS[A-Z2-7]{57}\b", said) is None, "a seed never leaves its files"
        assert (one.member.directory / "identity.conf").stat().st_mode & 0o777 == 0o600
        return said

    def render(self, one: Agent) -> str:
        """What `petiole render` prints; its files are beside the configuration."""
        return self.petiole(one, "render", "--out", str(one.member.directory))


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
    site = Site(tmp_path)
    site.enrol(site.hub)
    key = str(tomllib.loads(site.enrol(site.leaf))["leaf"][0]["key"])
    site.petiole(site.hub, "fleet", "add", "edge-1", key, "--tenant", "acme")
    for one in (site.hub, site.leaf):
        site.render(one)
    with running(site):
        assert site.leaf.post(READING, "a-1") == 204
        batch = site.leaf.status()["classes"]["normal"]["last"]
        wait_for(
            lambda: site.hub.status()["fleet"]["aggregates"]["TELEMETRY_0"]["last"] >= batch,
            "the hub holds what was stored",
        )
        wait = f"{SERVER_RETRY_SECONDS}s"
        assert site.petiole(site.hub, "command", "edge-1", "ping", "--wait", wait) == "done: here\n"
    assert site.render(site.leaf).startswith("unchanged: ")
