"""A leaf here and a whole hub in a guest, agent and embedded server, whose power can be cut; or one of three
machines, each a guest with an agent and its server of the cluster."""

from __future__ import annotations

import re
import shutil
import signal
from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final

from deltalake import DeltaTable

from agent.config.keys import ensure_key
from agent.contract import Exit, aggregate
from agent.demo import plan
from agent.demo.loopback import free_port
from hub_jobs.source.connection import Connection
from hub_jobs.source.server import Server
from hub_jobs.source.streams import stream_info
from tests.faults.guest.edge import DOMAIN, GuestSite, audited, only_http
from tests.faults.guest.kernel import Kernel
from tests.faults.guest.load import METRIC, Load
from tests.faults.guest.machine import HOST, Machine, run_agent
from tests.harness.agent_process import Agent

_RESTORED: Final = re.compile(rf"Restored ([0-9,]+) messages for stream '\S+ > {aggregate(0)}'")


class HubMachine(GuestSite):
    """A leaf here and a hub in a guest. The hub syncs as `sync` says. The leaf's stream is so small
    that it is trimmed under the load."""

    def __init__(self, directory: Path, kernel: Kernel, sync: str) -> None:
        self.hub_member, leaf_port = plan.member(directory, "hub"), free_port()
        self.member = plan.member(directory, DOMAIN)
        self._disk = self.hub_member.directory / "disk"
        self._disk.mkdir(parents=True)
        toml = only_http(plan.leaf_toml(self.member, leaf_port)).replace('"512MiB"', '"256KiB"')
        self.leaf = Agent(self.member, toml)
        enrolled = self.leaf.petiole("enrol").stdout
        self._key = self.hub_member.directory / "jobs.nk"
        ensure_key(self._key)
        toml = plan.hub_toml(self.hub_member, leaf_port, [enrolled])
        toml = toml.replace(str(self.hub_member.state), str(self._disk / "state"))
        toml = toml.replace("[nats]", f'[nats]\njobs_seed_file = "{self._key}"')
        toml = toml.replace("[registrar]", f'[registrar]\nsync_interval = "{sync}"')
        self.hub = Agent(self.hub_member, toml)
        ports = (self.hub_member.nats_port, leaf_port, self.hub_member.admin_port)
        self.machine = Machine(kernel, directory / "machine", self._disk, ports)

    def start(self) -> None:
        """Run all parts; the load flows."""
        self.leaf.start()
        self.boot()
        self.wait(lambda: self.held() > 0, "the hub holds something")
        self._load = Load(self.member.http_port)

    def boot(self) -> None:
        """Switch the guest on and run the hub's agent in it; returns when it takes announcements."""
        self.machine.boot()
        run_agent(self.machine, self.hub_member.config)
        self.wait(lambda: self.hub.status_of("/readyz") == 200, "the hub in the guest is ready")

    def held(self) -> int:
        """The last sequence of the hub's stream, once its server answers."""
        found: list[int] = []

        def answered() -> bool:
            with Connection(self._server(), 5.0) as connection:
                found.append(stream_info(connection, aggregate(0)).last_seq)
            return True

        self.wait(answered, "the hub's server answers")
        return found[-1]

    def restored(self) -> int:
        """How many messages the hub's server found in its stream at its newest start."""
        log = self.machine.run(f"cat /host{self._disk}/state/nats/*.log")
        return int(_RESTORED.findall(log)[-1].replace(",", ""))

    def new_epochs(self) -> int:
        """How many epochs the leaf began because the hub lacks messages."""
        return int(self.leaf.metric("petiole_epochs_total", reason="hub_lost"))

    def confirms_again(self, epochs: int, trimmed: int) -> None:
        """Return once the leaf has begun so many epochs and given up more messages than before."""
        self.wait(lambda: self.new_epochs() >= epochs, "the leaf begins another epoch")
        self.confirms_more(trimmed)

    def confirms_more(self, trimmed: int) -> None:
        """Return once the leaf has given up more messages than these."""
        self.wait(lambda: self.trimmed() > trimmed, "the hub confirms again")

    def trimmed(self) -> int:
        """How many messages the leaf has given up."""
        return int(self.leaf.metric("petiole_trimmed_messages_total"))

    def jobs_key(self) -> Path:
        return self._key

    def tables(self, lake: Path) -> tuple[Exit, Counter[tuple[str, int]], list[dict[str, Any]]]:
        """End the load and the leaf; returns what the audit says, how often each value is in the table, and
        the table's rows of the audit."""
        self.load.end()
        last = self.leaf.status()["classes"]["normal"]["last"]
        self.wait(
            lambda: self.leaf.status()["classes"]["normal"]["confirmed"] >= last, "the hub confirms all"
        )
        self.leaf.end(signal.SIGTERM)
        held = self.held()
        self.wait(lambda: self.held() == held, "nothing more comes")
        self.refined(lake)
        code, _ = audited(lake)
        table = DeltaTable(str(lake / "readings")).to_pyarrow_table(columns=["device", "metric", "value"])
        rows = [row for row in table.to_pylist() if row["metric"] == METRIC]
        return code, Counter((row["device"], int(row["value"])) for row in rows), rows

    def _server(self) -> Server:
        return Server(self.hub_member.nats_url, seed_file=str(self._key))


_MACHINES: Final = 3


class HubCluster(HubMachine):
    """A leaf here, and by name the machines of a hub whose servers sync before they acknowledge. The leaf's
    stream is so small that it is trimmed under the load."""

    def __init__(self, directory: Path, kernel: Kernel) -> None:
        self._hubs = plan.hub_machines(directory, _MACHINES)
        self.member = plan.member(directory, DOMAIN)
        toml = plan.leaf_toml(self.member, *(hub.leaf_port for hub in self._hubs))
        self.leaf = Agent(self.member, only_http(toml).replace('"512MiB"', '"256KiB"'))
        enrolled = self.leaf.petiole("enrol").stdout
        self._key = directory / "jobs.nk"
        ensure_key(self._key)
        password = directory / "cluster.password"
        password.write_text(f"of-the-servers-{free_port()}\n")
        password.chmod(0o600)
        self.machines: dict[str, Machine] = {}
        self.agents: dict[str, Agent] = {}
        for hub in self._hubs:
            disk = hub.member.directory / "disk"
            disk.mkdir(parents=True)
            cluster = plan.cluster_toml(hub, self._hubs, password)
            toml = plan.hub_toml(hub.member, hub.leaf_port, [enrolled], cluster)
            self.agents[hub.member.domain] = Agent(hub.member, self._inside(toml, hub, disk))
            ports = (hub.member.nats_port, hub.leaf_port, hub.member.admin_port, hub.route_port)
            machine = Machine(kernel, directory / f"machine-{hub.member.domain}", disk, ports)
            self.machines[hub.member.domain] = machine
        self.hub, self.machine = next(iter(self.agents.values())), next(iter(self.machines.values()))

    def __exit__(self, *_: object) -> None:
        for machine in self.machines.values():
            machine.cut_power()
        super().__exit__(*_)

    def boot(self) -> None:
        """Switch on whatever is off and run the hub's agents there; returns when one of them leads."""
        off = [name for name, machine in self.machines.items() if not machine.is_on]
        for name in off:
            self.machines[name].boot()
            run_agent(self.machines[name], self.agents[name].member.config)
        for name in off:
            self.wait(partial(self._is_ready, name), f"the hub's agent on {name} is ready")
        self.wait(lambda: self.leader() is not None, "a machine leads")

    def leader(self) -> str | None:
        """The machine whose agent leads."""
        leading = (
            name
            for name, agent in self.agents.items()
            if self.machines[name].is_on and agent.metric("petiole_hub_leading") == 1
        )
        return next(leading, None)

    def cut_power(self, names: Iterable[str]) -> None:
        """Cut the power of some machines at once; the jobs go on with one that is left."""
        for name in names:
            self.machines[name].cut_power()
        for name in (name for name, machine in self.machines.items() if machine.is_on):
            self.hub, self.machine = self.agents[name], self.machines[name]

    def said(self) -> str:
        """The last lines of the agents in the guests that are on."""
        on = (machine for machine in self.machines.values() if machine.is_on)
        return "; ".join(machine.run("tail -n 8 /agent.log || true") for machine in on)

    def _is_ready(self, name: str) -> bool:
        return self.agents[name].status_of("/readyz") == 200

    def _server(self) -> Server:
        return Server(self.hub.member.nats_url, seed_file=str(self._key))

    def _inside(self, toml: str, hub: plan.HubMachine, disk: Path) -> str:
        """The configuration of a machine for its guest, which dials the others by this machine's loopback."""
        routes = next(line for line in toml.splitlines() if line.startswith("routes = "))
        toml = toml.replace(routes, routes.replace("127.0.0.1", HOST))
        toml = toml.replace(str(hub.member.state), str(disk / "state"))
        key = hub.member.directory / "jobs.nk"
        shutil.copy(self._key, key)
        return toml.replace("[nats]", f'[nats]\njobs_seed_file = "{key}"')
