"""Runs the demonstration: hub, two loaded leaves, three faults, jobs and proof."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

from agent import contract
from agent.base.files import private_directory, write_private
from agent.base.wait import loop_time
from agent.config.keys import ensure_key
from agent.demo import plan
from agent.demo.load import FILE_DEVICE, write_lines
from agent.demo.loopback import LoopbackProxy
from agent.demo.plan import Member
from agent.demo.processes import DemoError, Processes, program
from agent.demo.proof import DemoReport, Domain, Jobs
from agent.demo.watch import Observer, leads, ready, until
from agent.server.child import process_of

_READY_SECONDS = 30.0
_RELINK_SECONDS = 60.0
_DRAIN_SECONDS = 60.0
_MARKER = "made-by-petiole-demo"
_JOBS_SEED = Path("keys") / "jobs.nk"
_AGENT_SEED = Path("keys") / "agent.nk"

Say = Callable[[str], None]


class Story:
    """A demonstration in `directory`; `say` shows stages."""

    def __init__(self, directory: Path, say: Say, hubs: int = 1) -> None:
        self._directory, self._say = directory, say
        self._processes = Processes(directory / "logs")
        self._hubs = plan.hub_machines(directory, hubs)
        self._hub = self._hubs[0].member
        self._leaves = {domain: plan.member(directory, domain) for domain in plan.LEAVES}
        self._proxies = [LoopbackProxy(machine.leaf_port) for machine in self._hubs]
        self._relink: dict[str, float] = {}
        urls = [machine.member.nats_url for machine in self._hubs]
        self._at_hub = Observer(urls, self._hub.state / _JOBS_SEED, "jobs")
        self._at_leaf = {
            domain: Observer([member.nats_url], member.state / _AGENT_SEED, domain)
            for domain, member in self._leaves.items()
        }

    async def tell(self) -> DemoReport:
        """Run it. Raises `DemoError`; leaves nothing running."""
        began = time.monotonic()
        try:
            await self._processes.guard()
            await self._set_up()
            acknowledged = await self._faults_under_load()
            await self._drain()
            domains = await self._prove(acknowledged)
        finally:
            await self._processes.end_all()
            for proxy in self._proxies:
                await proxy.stop()
        return DemoReport(domains, self._relink, time.monotonic() - began)

    async def _set_up(self) -> None:
        hub = "a hub" if len(self._hubs) == 1 else f"a hub of {len(self._hubs)} machines"
        self._say(f"starting {hub} and two leaves, each with its own NATS server and agent")
        for proxy in self._proxies:
            await proxy.start()
        ports = {
            "edge-1": [machine.leaf_port for machine in self._hubs],
            "edge-2": [proxy.port for proxy in self._proxies],
        }
        tables = []
        for domain, member in self._leaves.items():
            member.directory.mkdir(parents=True)
            member.config.write_text(plan.leaf_toml(member, *ports[domain]))
            tables.append((await self._processes.output("enrol", *_petiole("enrol", member)))[1])
        self._configure_hub(tables)
        for members in ([machine.member for machine in self._hubs], self._leaves.values()):
            for member in members:
                self._processes.leaves_server(member.config)
            await asyncio.gather(*map(self._start, members))
        await self._at_hub.until_beyond(
            {contract.leaf_stream(domain, contract.DEFAULT_CLASS): 0 for domain in self._leaves},
            "each leaf's first message is at the hub",
            _READY_SECONDS,
        )

    def _configure_hub(self, leaves: list[str]) -> None:
        """Write each hub machine's configuration for the leaves and the jobs' key."""
        password_file = self._directory / "cluster.password"
        write_private(password_file, f"{secrets.token_urlsafe(32)}\n".encode())
        several = len(self._hubs) > 1
        for machine in self._hubs:
            member = machine.member
            cluster = plan.cluster_toml(machine, self._hubs, password_file) if several else ""
            member.directory.mkdir()
            member.config.write_text(plan.hub_toml(member, machine.leaf_port, leaves, cluster))
            if member is self._hub:
                ensure_key(member.state / _JOBS_SEED)
            else:
                seed = (self._hub.state / _JOBS_SEED).read_bytes()
                private_directory(member.state)
                private_directory(member.state / "keys")
                write_private(member.state / _JOBS_SEED, seed)

    async def _start(self, member: Member) -> None:
        await self._processes.start(member.domain, *_petiole("run", member))
        await until(
            lambda: ready(member),
            f"{member.domain} is ready; see {self._processes.log(member.domain)}",
            _READY_SECONDS,
        )

    async def _faults_under_load(self) -> dict[str, dict[str, int]]:
        """Return acknowledged readings by device and domain."""
        rate, seconds = plan.READINGS_PER_SECOND, plan.LOAD_SECONDS
        self._say(
            f"sending {rate} readings a second to each leaf over HTTP for {seconds:.0f} s, and lines by file"
        )
        try:
            async with asyncio.TaskGroup() as group:
                load = group.create_task(self._load(rate, seconds))
                files = {
                    domain: group.create_task(write_lines(member.lines, plan.FILE_LINES_PER_SECOND, seconds))
                    for domain, member in self._leaves.items()
                }
                group.create_task(self._faults(loop_time()))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return {
            domain: {**acknowledged, FILE_DEVICE: files[domain].result()}
            for domain, acknowledged in load.result().items()
        }

    async def _load(self, rate: int, seconds: float) -> dict[str, dict[str, int]]:
        urls = [f"{domain}={member.http_url}" for domain, member in self._leaves.items()]
        command = (program("python"), "-m", "agent.demo.load", str(seconds), str(rate), *urls)
        _, printed = await self._processes.output("load", *command)
        counts = json.loads(printed.splitlines()[-1])["domains"]
        for domain, count in counts.items():
            if count["unanswered"]:
                raise DemoError(f"senders of {domain} gave up on {count['unanswered']} readings")
            self._say(
                f"  {domain}: senders are done, {count['repeated']} requests were unanswered and repeated"
            )
        return {domain: count["acknowledged"] for domain, count in counts.items()}

    async def _faults(self, start: float) -> None:
        await _at(start + plan.CUT_AT)
        self._say(f"cutting the link of edge-2 for {plan.CUT_SECONDS:.0f} s")
        for proxy in self._proxies:
            proxy.cut()
        await _at(start + plan.CUT_AT + plan.CUT_SECONDS)
        for proxy in self._proxies:
            proxy.restore()
        self._relink["link_cut"] = await self._relinked(["edge-2"])
        self._say(f"  link restored: edge-2's new data is at the hub after {self._relink['link_cut']:.1f} s")

        await _at(start + plan.HUB_KILL_AT)
        gone = None
        if len(self._hubs) == 1:
            self._say("killing the hub's NATS server with SIGKILL; its agent starts it again")
            await self._kill_server(self._hub)
        else:
            gone = await self._kill_leading_machine()
        self._relink["hub_kill"] = await self._relinked(list(self._leaves))
        self._say(f"  both leaves' new data is at the hub after {self._relink['hub_kill']:.1f} s more")

        await _at(start + plan.AGENT_KILL_AT)
        self._say("killing the agent of edge-1 with SIGKILL; its server and link go on without it")
        await self._processes.kill("edge-1")
        await self._start(self._leaves["edge-1"])
        self._say("  the agent is back and has taken its server over")
        if gone is not None:
            await self._start(gone)
            self._say(f"  {gone.domain} is started again and stands by")

    async def _kill_leading_machine(self) -> Member:
        """Kill the leading hub machine; returns it after a new lead."""
        members = [machine.member for machine in self._hubs]
        (leading,) = [member for member in members if await leads(member)]
        self._say(f"killing {leading.domain}, which leads the hub, agent and server, with SIGKILL")
        began = time.monotonic()
        await self._processes.kill(leading.domain)
        self._kill_server_of(leading)
        others = [member for member in members if member is not leading]

        async def led() -> bool:
            return any([await leads(member) for member in others])

        await until(led, "another machine leads the hub", _READY_SECONDS)
        self._relink["takeover"] = time.monotonic() - began
        self._say(f"  another machine leads after {self._relink['takeover']:.1f} s")
        return leading

    async def _kill_server(self, hub: Member) -> None:
        old = self._kill_server_of(hub)

        async def started() -> bool:
            return process_of(_server_config(hub)) not in (None, old)

        await until(started, "the hub's server is started again", _READY_SECONDS)

    def _kill_server_of(self, hub: Member) -> int:
        pid = process_of(_server_config(hub))
        if pid is None:
            raise DemoError("the hub's server does not run")
        os.kill(pid, signal.SIGKILL)
        return pid

    async def _relinked(self, domains: list[str]) -> float:
        """Return seconds until the hub has newly stored readings."""
        began = time.monotonic()
        now = {
            contract.leaf_stream(domain, contract.DEFAULT_CLASS): await self._last_at_leaf(domain)
            for domain in domains
        }
        await self._at_hub.until_beyond(
            now, f"new data of {', '.join(domains)} is at the hub", _RELINK_SECONDS
        )
        return time.monotonic() - began

    async def _last_at_leaf(self, domain: str) -> int:
        return await self._at_leaf[domain].last(contract.leaf_stream(domain, contract.DEFAULT_CLASS))

    async def _drain(self) -> None:
        self._say("stopping the leaves' agents: they drain and close their runs; then all must be at the hub")
        for domain, member in self._leaves.items():
            await self._at_leaf[domain].until_file_is_stored(
                domain, member.lines.stat().st_size, _DRAIN_SECONDS
            )
            await self._processes.terminate(domain)
        ends = {
            contract.leaf_stream(domain, contract.DEFAULT_CLASS): await self._last_at_leaf(domain) - 1
            for domain in self._leaves
        }
        await self._at_hub.until_beyond(ends, "all that the leaves hold is at the hub", _DRAIN_SECONDS)

    async def _prove(self, acknowledged: dict[str, dict[str, int]]) -> dict[str, Domain]:
        url = ",".join(machine.member.nats_url for machine in self._hubs)
        jobs = Jobs(self._processes, url, self._hub.state / _JOBS_SEED, self._directory)
        self._say("spark-submit ingest: the hub's stream into bronze")
        await jobs.ingest()
        self._say("spark-submit refine: bronze into readings")
        await jobs.refine()
        self._say("spark-submit query: readings by domain and device")
        rows = await jobs.query(acknowledged)
        self._say("spark-submit audit: ledgers against tables")
        audited = await jobs.audit()
        self._say(f"  the audit: {audited.said}")
        domains = {
            domain: Domain.compare(counts, rows.get(domain, {}), audited.discarded.get(domain, 0))
            for domain, counts in acknowledged.items()
        }
        if not audited.clean and all(domain.whole for domain in domains.values()):
            raise DemoError(
                f"the audit found a loss where the senders saw none; see {self._processes.log('audit')}"
            )
        return domains


def _server_config(member: Member) -> Path:
    return member.state / "nats" / "nats-server.conf"


def _petiole(command: str, member: Member) -> tuple[str, ...]:
    return program("petiole"), command, "-c", str(member.config)


async def _at(moment: float) -> None:
    await asyncio.sleep(max(0.0, moment - loop_time()))


def fresh(directory: Path) -> None:
    """Create or clear the directory. Raises `DemoError` for foreign files."""
    marker = directory / _MARKER
    if marker.exists():
        shutil.rmtree(directory)
    elif directory.exists() and any(directory.iterdir()):
        raise DemoError(f"{directory} holds what no demonstration made; name another directory")
    (directory / "logs").mkdir(parents=True)
    marker.touch()
