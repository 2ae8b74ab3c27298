"""A hub of three servers with rendered configurations, in the place of the one of a fault environment."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from nats.errors import Error as NatsError

from agent.base.nats_server import find_binary
from agent.contract import aggregate
from agent.demo import plan
from agent.demo.loopback import free_port
from agent.demo.plan import Member
from tests.faults.report import Case
from tests.faults.world.configs import LeafSettings, leaf_toml
from tests.faults.world.environment import FaultEnvironment, link_flows
from tests.faults.world.injected_faults import InjectedFaults
from tests.faults.world.load import load
from tests.faults.world.machine import Machine, Program
from tests.faults.world.scrape import asked, scrapes
from tests.faults.world.tcp_proxy import Link, tcp_proxy
from tests.harness.agent_process import PETIOLE
from tests.harness.wait import wait_for

_STREAM = aggregate(0)
_HUB = """
role = "hub"
domain = "hub"
state_dir = "{hub.state}"
admin = {{ listen = "127.0.0.1:{hub.admin_port}" }}
log = {{ format = "json" }}

[registrar]
max_bytes = "512MiB"
replicas = 3

[nats]
server = "external"
listen = "127.0.0.1:{port}"
seed_file = "{hub.state}/keys/registrar.nk"
system_seed_file = "{hub.state}/keys/registrar_system.nk"
store_dir = "{store}"
max_file_store = "2GiB"
leaf_listen = "127.0.0.1:{leaf_port}"

[nats.cluster]
name = "{name}"
listen = "{route}"
routes = {routes}
password_file = "{hub.directory}/password"

"""
_MAY = f'"$JS.API.STREAM.INFO.{_STREAM}"'


class Server:
    """One server of the hub, a process that can be hurt and started again."""

    def __init__(self, name: str, directory: Path, port: int, injected: InjectedFaults) -> None:
        self.name, self.directory, self.port = name, directory, port
        self._process: subprocess.Popen[bytes] | None = None
        self.program = Program(f"the server {name}", injected, self._pid)

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Run it, without waiting for the others."""
        with (self.directory / "server.log").open("ab") as log:
            command = [str(find_binary()), "-c", str(self.directory / "nats.conf")]
            self._process = subprocess.Popen(command, stderr=log, stdout=log)

    def close(self) -> None:
        """End it, whatever state it is in."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _pid(self) -> int | None:
        if self._process is None or self._process.poll() is not None:
            return None
        return self._process.pid


class Cluster:
    """The servers, and who leads the aggregate."""

    def __init__(self, servers: list[Server], hub: Member) -> None:
        self.servers = {one.name: one for one in servers}
        self._seed = hub.state / "keys" / "registrar.nk"

    def leader(self) -> str:
        """The server that leads the aggregate, "" while none does or nobody answers."""
        found = self._ask(f"$JS.API.STREAM.INFO.{_STREAM}").get("cluster", {})
        return str(found.get("leader", ""))

    def blocks(self, name: str) -> list[Path]:
        """The files of a server's copy of the aggregate, oldest first."""
        found = self.servers[name].directory.glob(f"store/jetstream/*/streams/{_STREAM}/msgs/*.blk")
        return sorted(found, key=lambda path: int(path.stem))

    def lacking(self) -> int:
        """How many messages the copy of the leader of an aggregate that was never purged lacks."""
        found = self._ask(f"$JS.API.STREAM.INFO.{_STREAM}").get("state", {})
        return int(found.get("num_deleted", 0)) + max(int(found.get("first_seq", 0)) - 1, 0)

    def last(self) -> int:
        """The last sequence of the aggregate, 0 while nobody answers."""
        return int(self._ask(f"$JS.API.STREAM.INFO.{_STREAM}").get("state", {}).get("last_seq", 0))

    def moved(self, before: str) -> str | None:
        """Who leads it instead of `before`."""
        now = self.leader()
        return f"{now} leads instead of {before}" if now not in ("", before) else None

    def step_down(self, for_: str = "") -> None:
        """Let another server lead, `for_` if it can."""
        payload = json.dumps({"placement": {"preferred": for_}}).encode() if for_ else b""
        self._ask(f"$JS.API.STREAM.LEADER.STEPDOWN.{_STREAM}", payload)

    def whole(self) -> bool:
        """Whether the aggregate stands on three servers that are all current."""
        found = self._ask(f"$JS.API.STREAM.INFO.{_STREAM}").get("cluster", {})
        replicas = found.get("replicas", ())
        return bool(found.get("leader")) and len(replicas) == 2 and all(one["current"] for one in replicas)

    def _ask(self, subject: str, payload: bytes = b"") -> dict[str, Any]:
        for one in self.servers.values():
            if one.program.pid is not None:
                try:
                    return asked(one.url, self._seed, subject, payload)
                except (NatsError, OSError, TimeoutError):
                    continue
        return {}


@contextmanager
def open_cluster_environment(
    directory: Path, case: Case, devices: int = 3
) -> Iterator[tuple[FaultEnvironment, Cluster]]:
    """A hub of three servers beside its agent, which an agent does not run, and the leaf edge-1 that dials
    all of them; it flows."""
    injected = InjectedFaults(case)
    hub, member = plan.member(directory, "hub"), plan.member(directory, "edge-1")
    leaf_ports = {name: free_port() for name in "abc"}
    ports = dict(zip("abc", (hub.nats_port, free_port(), free_port()), strict=True))
    with ExitStack() as stack:
        proxy = stack.enter_context(tcp_proxy(leaf_ports["a"]))
        urls = [f"nats-leaf://{proxy.host}:{proxy.port}"]
        urls += [f"nats-leaf://127.0.0.1:{leaf_ports[name]}" for name in "bc"]
        leaf = Machine(member, leaf_toml(member, '", "'.join(urls), LeafSettings()), injected)
        routes = {name: f"127.0.0.1:{free_port()}" for name in "abc"}
        member_table = leaf.petiole("enrol").stdout
        texts = {
            name: _HUB.format(
                hub=hub,
                name=name,
                port=ports[name],
                leaf_port=leaf_ports[name],
                store=directory / f"hub-{name}" / "store",
                route=routes[name],
                routes=json.dumps(list(routes.values())),
            )
            + member_table
            for name in "abc"
        }
        centre = Machine(hub, texts["a"], injected)
        (hub.directory / "password").write_text("secret-of-the-three\n")
        (hub.directory / "password").chmod(0o600)
        done = centre.petiole("enrol")
        assert done.returncode == 0, done.stderr
        servers = [
            _installed(name, directory, text, hub, ports[name], injected) for name, text in texts.items()
        ]
        cluster = Cluster(servers, hub)
        for server in servers:
            stack.callback(server.close)
            server.start()
        for machine in (centre, leaf):
            stack.callback(machine.close)
            machine.begin()
        for machine in (centre, leaf):
            machine.wait_ready()
        wait_for(lambda: link_flows(leaf), "the link flows")
        wait_for(cluster.whole, "the aggregate stands on three servers")
        sending = stack.enter_context(load())
        looking = stack.enter_context(scrapes([leaf]))
        injected.observers.insert(0, sending.notes.since)
        for number in range(1, devices + 1):
            sending.over_http(member, f"pump-{number}")
        sending.direct(member, "press-1")
        environment = FaultEnvironment(case, centre, [leaf], Link(proxy, injected, [leaf]), sending, looking)
        sending.flows()
        yield environment, cluster


def _installed(
    name: str, directory: Path, configuration: str, hub: Member, port: int, injected: InjectedFaults
) -> Server:
    """The server that is rendered from a configuration. The registrar's key may also have the leader step
    down."""
    own = directory / f"hub-{name}"
    own.mkdir()
    file = own / "petiole.toml"
    file.write_text(configuration)
    command = [PETIOLE, "render", "-c", str(file), "--out", str(own)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    text = (own / "nats.conf").read_text()
    text = text.replace(_MAY, f'{_MAY}\n"$JS.API.STREAM.LEADER.STEPDOWN.{_STREAM}"', 1)
    (own / "nats.conf").write_text(text)
    shutil.copy(hub.directory / "identity.conf", own)
    return Server(f"hub-{name}", own, port, injected)
