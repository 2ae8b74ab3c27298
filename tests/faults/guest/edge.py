"""A hub here and a leaf in a guest, whose power can be cut and whose clock can be set, with a load that flows
through both. The leaf may be there as a whole, agent and embedded server, or only its server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shlex
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal, Self

from msgspec.structs import replace

from agent.base.machine import machine_id
from agent.base.nats_server import find_binary
from agent.config import load as load_config
from agent.contract import Exit, batch_subject, ledger_subject, parse_ledger
from agent.demo import plan
from agent.demo.loopback import free_port
from agent.leaf.inputs import OPTIONS
from agent.leaf.link.guard import EpochReason
from agent.server.setup import server_config
from agent.server.values import LeafConfig
from agent.server.workspace import Workspace
from hub_jobs.audit import run as audit
from hub_jobs.ingest import run as ingest
from hub_jobs.refine import run as refine
from hub_jobs.source.protocol import WireError
from tests.faults.guest.kernel import Kernel
from tests.faults.guest.load import Arrived, Load, arrived, at_hub
from tests.faults.guest.machine import AGENT_LOG, HOST, GuestError, Machine, chrooted, run_agent
from tests.faults.world.configs import external
from tests.harness.agent_process import Agent
from tests.harness.stream_records import StreamRecord

DOMAIN: Final = "edge-1"
_SECONDS: Final = 400.0
"""What a wait may last: a guest without hardware help on a busy machine is slow."""
_POLL_SECONDS: Final = 0.5
Sync = Literal["always", "1s", "2m"]


class GuestSite(ABC):
    """A leaf and a hub, one of both in a guest, as a context that ends all parts, and a load that flows
    through them."""

    leaf: Agent
    hub: Agent
    machine: Machine
    _load: Load | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._load is not None:
            self._load.end()
        for agent in (self.leaf, self.hub):
            agent.close()
        self.machine.cut_power()

    @property
    def load(self) -> Load:
        """The load, once it was started."""
        assert self._load is not None
        return self._load

    def wait(self, true: Callable[[], bool], what: str) -> None:
        """Return when it is so; that somebody does not answer yet is no reason to fail."""
        deadline = time.monotonic() + _SECONDS
        while True:
            with contextlib.suppress(AssertionError, KeyError, OSError, WireError):
                if true():
                    return
            if time.monotonic() > deadline:
                raise AssertionError(f"waited in vain: {what}; {self.said()}; {self.machine.console()}")
            time.sleep(_POLL_SECONDS)

    def said(self) -> str:
        """The last lines of an agent in the guest, if there is one."""
        return self.machine.run(f"tail -n 20 {AGENT_LOG} || true")

    def goes_on(self, by: int = 200) -> None:
        """Return when so many more readings were acknowledged."""
        wanted = self.load.count + by
        self.wait(lambda: self.load.count >= wanted, f"{by} more readings are acknowledged")

    def ingested(self, lake: Path) -> Exit:
        """Take what the hub holds into bronze."""
        options = [
            "--server",
            self.hub.member.nats_url,
            "--seed-file",
            str(self.jobs_key()),
            "--lake",
            str(lake),
        ]
        return ingest.main(options)

    def jobs_key(self) -> Path:
        """With which the jobs connect to the hub."""
        return self.hub.member.state / "keys" / "jobs.nk"

    def refined(self, lake: Path) -> None:
        """Take what the hub holds into tables."""
        self.wait(lambda: self.ingested(lake) == Exit.WELL, "ingest has read all")
        assert refine.main(["--lake", str(lake)]) == Exit.WELL


def audited(lake: Path) -> tuple[Exit, dict[str, Any]]:
    """Audit tables; returns the exit code and the report."""
    report = lake.with_suffix(".json")
    code = audit.main(["--lake", str(lake), "--json", str(report)])
    found: dict[str, Any] = json.loads(report.read_text())
    return code, found


class Edge(GuestSite):
    """A hub here and a leaf in a guest. `start` runs all parts."""

    def __init__(self, directory: Path, kernel: Kernel) -> None:
        hub_member, self._leaf_port = plan.member(directory, "hub"), free_port()
        self.member = plan.member(directory, DOMAIN)
        self.disk = self.member.directory / "disk"
        self.disk.mkdir(parents=True)
        self.leaf = self._leaf()
        enrolled = self.leaf.petiole("enrol").stdout
        self.hub = Agent(hub_member, plan.hub_toml(hub_member, self._leaf_port, [enrolled]))
        ports = (self.member.nats_port, self.member.admin_port, self.member.http_port)
        self.machine = Machine(kernel, directory / "machine", self.disk, self._inside(ports))

    def start(self, clock: int | None = None) -> None:
        """Run all parts, the guest's clock at `clock` (epoch seconds) if it is given; the load flows."""
        self.hub.start()
        self.boot(clock)
        self._started()
        self._load = Load(self.member.http_port)

    @abstractmethod
    def boot(self, clock: int | None = None) -> None:
        """Switch the guest on and run in it what is there, with what its disk holds."""

    def status(self) -> dict[str, Any]:
        """The leaf's /status, once it answers."""
        found: list[dict[str, Any]] = []

        def answered() -> bool:
            found.append(self.leaf.status())
            return True

        self.wait(answered, "the leaf tells its status")
        return found[-1]

    def new_epochs(self) -> set[str]:
        """Why this run of the agent began epochs, the very first of the link apart."""
        return {
            why.value
            for why in EpochReason
            if why is not EpochReason.FIRST and self.leaf.metric("petiole_epochs_total", reason=why.value)
        }

    def hub_goes(self) -> None:
        """End the hub, agent and server."""
        assert self.hub.end(signal.SIGTERM) == Exit.WELL
        assert self.hub.petiole("server", "stop").returncode == Exit.WELL

    def caught_up(self) -> None:
        """Return when the hub has confirmed all that the leaf holds now."""
        last = self.status()["classes"]["normal"]["last"]
        self.wait(lambda: self._confirmed() >= last, "the hub confirms all")

    def drained(self) -> Arrived:
        """End the load; returns what the hub holds once that is all that the leaf holds."""
        self.load.end()
        self.caught_up()
        return arrived(self.load, self._at_hub(batch_subject(DOMAIN, "normal", "http")))

    def audited(self, lake: Path) -> tuple[Exit, dict[str, Any]]:
        """End the agent, whose last ledger record then says all, take everything into tables, and audit them;
        returns the exit code and the report."""
        run = self.status()["run"]
        self._end_agent()
        self.wait(lambda: self._is_closed(run), "the hub has the last ledger record")
        self.refined(lake)
        return audited(lake)

    @abstractmethod
    def _leaf(self) -> Agent:
        """The leaf's agent, configured."""

    @abstractmethod
    def _inside(self, ports: tuple[int, int, int]) -> tuple[int, ...]:
        """Which of the ports of server, admin server and input are the guest's."""

    @abstractmethod
    def _started(self) -> None:
        """Start the agent, where it is not there yet; returns when it takes readings."""

    @abstractmethod
    def _end_agent(self) -> None:
        """SIGTERM."""

    def _confirmed(self) -> int:
        return int(self.leaf.status()["classes"]["normal"]["confirmed"])

    def _is_closed(self, run: str) -> bool:
        records = [parse_ledger(one.payload) for one in self._at_hub(ledger_subject(DOMAIN, "normal"))]
        return any(one.final and one.run == run for one in records)

    def _at_hub(self, subject: str) -> list[StreamRecord]:
        return at_hub(self.hub.member, subject)

    def _toml(self) -> str:
        return only_http(plan.leaf_toml(self.member, self._leaf_port))


def only_http(toml: str) -> str:
    """A leaf's configuration without inputs of which nobody counts what was acknowledged."""
    head, http, *_ = toml.split("[[input]]")
    return f"{head}[[input]]{http}"


class ServerEdge(Edge):
    """The guest is the leaf's server, which syncs as `sync` says; the agent is here, and to it that server is
    not its own."""

    def __init__(self, directory: Path, kernel: Kernel, sync: Sync) -> None:
        self._sync = sync
        super().__init__(directory, kernel)

    def boot(self, clock: int | None = None) -> None:
        """Switch the guest on and run the server."""
        self.machine.boot(clock)
        server = chrooted(f"{find_binary()} -c {shlex.quote(str(self._configuration))}")
        self.machine.run(f"setsid {server} < /dev/null > /server.out 2>&1 & true")

    def _leaf(self) -> Agent:
        leaf = Agent(self.member, self._toml())
        self._configuration = self._rendered()
        self.member.config.write_text(external(self._toml(), self.member.state / "keys"))
        return leaf

    def _inside(self, ports: tuple[int, int, int]) -> tuple[int, ...]:
        return ports[:1]

    def _started(self) -> None:
        self.leaf.start()

    def _end_agent(self) -> None:
        self.leaf.end(signal.SIGTERM)

    def _rendered(self) -> Path:
        """What the agent renders for a server of its own, for this one."""
        config = server_config(load_config(self.member.config, OPTIONS), machine_id())
        assert isinstance(config, LeafConfig)
        workspace = Workspace(self.member.directory / "server")
        workspace.directory.mkdir(mode=0o700)
        there = replace(
            config,
            store_dir=self.disk / "store",
            hub_urls=(f"nats-leaf://{HOST}:{self._leaf_port}",),
            log_file=self.disk / "server.log",
        )
        asyncio.run(workspace.write(there, find_binary()))
        path = workspace.configuration
        text, changed = re.subn(r"sync_interval: \S+", f"sync_interval: {self._sync}", path.read_text())
        assert changed == 1, text
        path.write_text(text)
        return path


class MachineEdge(Edge):
    """The guest is the whole machine of the leaf: the agent and its embedded server, with state and store on
    its disk."""

    def boot(self, clock: int | None = None) -> None:
        """Switch the guest on and run the agent."""
        self.machine.boot(clock)
        run_agent(self.machine, self.member.config)

    def restart_agent(self) -> None:
        """SIGKILL, and a new start; returns when it takes readings."""
        self.machine.run("kill -KILL $(cat /agent.pid)")
        self.wait(lambda: self.leaf.status_of("/readyz") is None, "the agent is gone")
        run_agent(self.machine, self.member.config)
        self._started()

    def set_clock(self, epoch: float) -> None:
        """Step the machine's clock."""
        self.machine.run(f"date -u -s @{epoch:.0f}")

    def synchronise(self) -> None:
        """Have the kernel call its clock synchronised, as a time daemon does."""
        self.machine.run(chrooted(f"{sys.executable} {_SYNCHRONISE}"))

    def log(self) -> str:
        """What the agent logged in this boot."""
        return self.machine.run(f"cat {AGENT_LOG}")

    def _leaf(self) -> Agent:
        key = self.member.directory / "link.nk"
        own = f'[nats]\nlink_seed_file = "{key}"'
        toml = self._toml().replace("[nats]", own).replace("nats-leaf://127.0.0.1", f"nats-leaf://{HOST}")
        return Agent(self.member, toml.replace(str(self.member.state), str(self.disk / "state")))

    def _inside(self, ports: tuple[int, int, int]) -> tuple[int, ...]:
        return ports

    def _started(self) -> None:
        try:
            self.wait(lambda: self.leaf.status_of("/readyz") == 200, "the agent in the guest is ready")
        except AssertionError as error:
            raise GuestError(f"{error}; {self.log()}") from None

    def _end_agent(self) -> None:
        self.machine.run("kill -TERM $(cat /agent.pid)")


_SYNCHRONISE: Final = Path(__file__).with_name("synchronise.py")
