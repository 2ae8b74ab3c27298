"""A hub of three machines: three servers in a cluster, each run by an agent of its own, and a leaf by
hand."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from msgspec.structs import replace
from nats.aio.client import Client
from nats.errors import Error as NatsError

from agent.config.keys import ensure_key
from agent.contract import inbox_prefix
from agent.demo import plan
from agent.demo.loopback import LoopbackProxy
from agent.demo.plan import HubMachine
from agent.jetstream import JetStreamError
from agent.jetstream.connection import CancellableClient
from tests.harness.agent_process import Agent
from tests.harness.registrar import LeafHand
from tests.harness.servers import Leaf, make_leaf
from tests.harness.wait import WAIT_SECONDS, until, wait_for


@dataclass(frozen=True)
class Place:
    """Where a machine stands: at which address its server reaches the others', and the command that its
    processes run under."""

    address: str = "127.0.0.1"
    under: tuple[str, ...] = ()


class HubMachines:
    """The machines' agents by the names of their servers."""

    def __init__(
        self,
        directory: Path,
        leaves: list[str],
        members: list[HubMachine],
        place: Callable[[HubMachine], Place],
    ) -> None:
        self.machines = members
        password = directory / "cluster.password"
        password.write_text("of-the-three-servers\n")
        password.chmod(0o600)
        self.agents = {}
        places = {machine.member.domain: place(machine) for machine in members}
        for machine in members:
            cluster = plan.cluster_toml(machine, members, password)
            toml = plan.hub_toml(machine.member, machine.leaf_port, leaves, cluster)
            toml = toml.replace("[registrar]", "[registrar]\nkeep = 0")
            for other in members:
                address = places[other.member.domain].address
                toml = toml.replace(f"127.0.0.1:{other.route_port}", f"{address}:{other.route_port}")
            agent = self.agents[machine.member.domain] = Agent(machine.member, toml)
            agent.under = places[machine.member.domain].under

    def start(self) -> None:
        """Run them all, with one key of the jobs."""
        first, *others = [agent.member.state / "keys" / "jobs.nk" for agent in self.agents.values()]
        ensure_key(first)
        for path in others:
            path.parent.mkdir(parents=True, mode=0o700)
            shutil.copy(first, path)
        for agent in self.agents.values():
            agent.launch()
        wait_for(lambda: len(self.leading()) == 1, "one of the three leads")

    def leading(self, besides: str = "") -> list[str]:
        """Who leads; `besides` is not asked."""
        return [name for name, agent in self.agents.items() if name != besides and _leads(agent)]

    def leader(self, besides: str = "", seconds: float = WAIT_SECONDS) -> str:
        """Who leads, once one does that is not `besides`."""
        wait_for(lambda: bool(self.leading(besides)), "a machine leads", seconds)
        return self.leading(besides)[0]

    def kill(self, name: str) -> None:
        """The machine goes: agent and server at one blow."""
        agent = self.agents[name]
        assert agent.process is not None
        server = agent.server()
        agent.process.kill()
        if server is not None:
            os.kill(server, signal.SIGKILL)
        agent.process.wait()


def _leads(agent: Agent) -> bool:
    if agent.process is None or agent.process.poll() is not None:
        return False
    return agent.status_of("/readyz") == 200 and agent.metric("petiole_hub_leading") == 1


@contextmanager
def three_hubs(
    directory: Path, leaves: list[str], place: Callable[[HubMachine], Place] = lambda _: Place()
) -> Iterator[HubMachines]:
    """Three machines of a hub that let in these `leaves`, running, each where `place` puts it; all of it ends
    with the context."""
    hubs = HubMachines(directory, leaves, plan.hub_machines(directory, 3), place)
    try:
        hubs.start()
        yield hubs
    finally:
        for agent in hubs.agents.values():
            agent.close()


@asynccontextmanager
async def hubs_and_leaf(
    directory: Path, place: Callable[[HubMachine], Place] = lambda _: Place(), cell: int = 0
) -> AsyncIterator[tuple[HubMachines, LeafHand]]:
    """Three machines of a hub, as of `three_hubs`, and a leaf in a `cell` that dials all of them, with a
    source at the hub."""
    link = directory / "edge-1" / "link.nk"
    table = f'[[leaf]]\ndomain = "edge-1"\nkey = "{ensure_key(link)}"\ncell = {cell}\n'
    async with AsyncExitStack() as stack:
        hubs = stack.enter_context(three_hubs(directory, [table], place))
        proxy = LoopbackProxy(hubs.machines[0].leaf_port)
        bare = make_leaf(directory / "edge-1", "edge-1", ("normal",), proxy, link)
        urls = tuple(f"nats-leaf://127.0.0.1:{hub.leaf_port}" for hub in hubs.machines)
        leaf = Leaf(replace(bare.config, hub_urls=urls), bare.directory, bare.keys, bare._inboxes, proxy)
        stack.push_async_callback(leaf.close)
        await leaf.start()
        await leaf.wait_linked()
        hand = await LeafHand.make(leaf)
        await until(partial(answered, hand), "the leaf is taken in")
        yield hubs, hand


async def connected_to(hubs: HubMachines, identity: str, name: str) -> Client:
    """A connection of the `jobs` or the `registrar` to one of the servers."""
    member = hubs.agents[name].member
    client = CancellableClient()
    await client.connect(
        member.nats_url,
        nkeys_seed=str(member.state / "keys" / f"{identity}.nk"),
        inbox_prefix=inbox_prefix(identity).encode(),
    )
    return client


async def answered(leaf: LeafHand) -> bool:
    """Whether an announcement is answered; its link may be down."""
    try:
        return (await leaf.say((await leaf.announcement()).encode())).refused is None
    except (NatsError, JetStreamError):
        return False
