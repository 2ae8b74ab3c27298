"""A leaf here and a hub of three machines, each a guest with an agent and its server of the cluster, any of
whose power can be cut."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Final

from agent.config.keys import ensure_key
from agent.demo import plan
from agent.demo.ports import free_port
from hub_jobs.source.server import Server
from tests.faults.guest.edge import DOMAIN, only_http
from tests.faults.guest.hub import HubMachine
from tests.faults.guest.kernel import Kernel
from tests.faults.guest.machine import HOST, Machine, run_agent
from tests.harness.agent_process import Agent

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
