"""A hub of one machine becomes one of three while a leaf stores, as docs/hub-cluster.md says, and is asked to
become one of one machine again."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from typer.testing import CliRunner

from agent.cli.main import app
from agent.contract import COMMANDS, FLEET_BUCKET, H_COUNT, inbox_prefix, leaf_stream
from agent.demo import plan
from agent.jetstream import JetStream, JetStreamError
from agent.jetstream.readers import StoredHeaders, read_headers
from tests.e2e.test_growing_fleet import Sender, sending
from tests.faults.report import Case
from tests.harness.agent_process import Agent
from tests.harness.hub_machines import HubMachines, Place
from tests.harness.streams import AGGREGATE
from tests.harness.wait import until, wait_for

LEAF = "edge-1"
STREAMS = (AGGREGATE, COMMANDS, f"KV_{FLEET_BUCKET}")


@contextmanager
def closing(*agents: Agent) -> Iterator[None]:
    try:
        yield
    finally:
        for agent in agents:
            agent.close()


async def connected(agent: Agent, identity: str, name: str) -> Client:
    """A connection with one of an agent's own keys."""
    return await nats.connect(
        agent.member.nats_url,
        nkeys_seed=str(agent.member.state / "keys" / f"{identity}.nk"),
        inbox_prefix=inbox_prefix(name).encode(),
    )


async def ids(agent: Agent, stream: str) -> list[str]:
    """The ids of all messages of a leaf or of a hub's stream, in their order; ledgers have none."""
    identity, name = ("agent", LEAF) if agent.member.domain == LEAF else ("registrar", "registrar")
    client, found = await connected(agent, identity, name), list[str]()

    def take(message: StoredHeaders) -> None:
        found.append(f"{message.subject} {message.headers.get('Nats-Msg-Id', '')}")

    try:
        await read_headers(client, JetStream(client), stream, {"deliver_policy": "all"}, take)
    finally:
        await client.close()
    return found


async def readings(leaf: Agent) -> int:
    """How many readings are in the leaf's stream."""
    client, found = await connected(leaf, "agent", LEAF), [0]

    def take(message: StoredHeaders) -> None:
        found[0] += int(message.headers.get(H_COUNT, 0))

    try:
        stream = leaf_stream(LEAF, "normal")
        await read_headers(client, JetStream(client), stream, {"deliver_policy": "all"}, take)
    finally:
        await client.close()
    return found[0]


async def replicas(agent: Agent) -> dict[str, tuple[int, int]]:
    """Of each of the hub's streams on how many servers it shall be, and how many are up to date."""
    client = await connected(agent, "registrar", "registrar")
    try:
        rows = {}
        for stream in STREAMS:
            info = await JetStream(client).api(f"STREAM.INFO.{stream}")
            followers = info.get("cluster", {}).get("replicas") or []
            current = 1 + sum(bool(row["current"]) for row in followers)
            rows[stream] = info["config"]["num_replicas"], current
        return rows
    except JetStreamError:
        return {}
    finally:
        await client.close()


@pytest.mark.timeout(600)
async def test_a_hub_of_one_machine_becomes_one_of_three_while_a_leaf_stores(
    case: Case, tmp_path: Path
) -> None:
    case.expected = (
        "all streams on three servers, each message once in its epoch; one refuses the store of three"
    )
    machines = plan.hub_machines(tmp_path, 3)
    member = plan.member(tmp_path, LEAF)
    toml = plan.leaf_toml(member, machines[0].leaf_port)
    leaf = Agent(member, toml[: toml.rindex('[[input]]\ntype = "file"')])
    table = CliRunner().invoke(app, ["enrol", "-c", str(member.config)]).stdout
    first = machines[0].member
    hub_toml = plan.hub_toml(first, machines[0].leaf_port, [table])
    hub = Agent(first, hub_toml)
    with ExitStack() as stack:
        stack.enter_context(closing(hub, leaf))
        hub.start()
        leaf.start()
        wait_for(lambda: leaf.status()["link"]["state"] == "flowing", "the link flows")
        with sending(leaf) as sender:
            sender.sends(50)
            wait_for(lambda: hub.metric("petiole_aggregate_messages") > 0, "some are at the hub")
            taken = await ids(hub, AGGREGATE)

            assert hub.end(signal.SIGTERM) == 0
            assert hub.petiole("server", "stop").returncode == 0
            store = first.state / "nats" / "store"
            store.rename(store.with_name("store.single"))
            sender.sends(50)
            hubs = HubMachines(tmp_path, [table], machines, lambda _: Place())
            stack.enter_context(closing(*hubs.agents.values()))
            hubs.start()
            sender.sends(50)
            _name_all(leaf, [machine.leaf_port for machine in machines])
            sender.sends(50)
        await judge(case, hubs, leaf, taken, sender)
        for agent in hubs.agents.values():
            assert agent.end(signal.SIGTERM) == 0
            assert agent.petiole("server", "stop").returncode == 0
        await _goes_back(Agent(first, hub_toml), leaf)


def _name_all(leaf: Agent, ports: list[int]) -> None:
    """Have a leaf dial all three."""
    text, names = leaf.member.config.read_text(), "hub_urls = "
    old = text.partition(names)[2].partition("\n")[0]
    new = plan.leaf_toml(leaf.member, *ports).partition(names)[2].partition("\n")[0]
    leaf.member.config.write_text(text.replace(old, new))
    assert leaf.process is not None
    leaf.process.send_signal(signal.SIGHUP)


async def _goes_back(hub: Agent, leaf: Agent) -> None:
    """The store of three is refused, and with an empty one the leaf sends again what it holds."""
    said, store = len(hub.log.read_text()), hub.member.state / "nats" / "store"
    with closing(hub):
        hub.launch()
        refused = "is the store of a hub of several machines"
        wait_for(lambda: refused in hub.log.read_text()[said:], "the store of three is refused")
        assert hub.server() is None
        assert hub.end(signal.SIGTERM) == 0
        store.rename(store.with_name("store.three"))
        hub.start()
        sent = await ids(leaf, leaf_stream(LEAF, "normal"))

        async def all_there() -> bool:
            return sorted(await ids(hub, AGGREGATE)) == sorted(sent)

        await until(all_there, "each message is at the hub once")


def since_epoch(found: list[str], first: str) -> list[str]:
    """What came through the newest epoch, which began at the leaf's first message."""
    return found[len(found) - 1 - found[::-1].index(first) :] if first in found else []


async def judge(case: Case, hubs: HubMachines, leaf: Agent, taken: list[str], sender: Sender) -> None:
    """All that the leaf stored came once through its new epoch, and all streams are on three servers.

    What the old epoch still delivers before leaf and hub have compared comes again in the new one. `refine`
    keeps one of both: they carry one id.
    """
    leader = hubs.agents[hubs.leader()]

    async def on_three() -> bool:
        return await replicas(leader) == dict.fromkeys(STREAMS, (3, 3))

    await until(on_three, "all streams are on three servers")
    sent = await ids(leaf, leaf_stream(LEAF, "normal"))

    async def all_there() -> bool:
        return set(sent) <= set(since_epoch(await ids(leader, AGGREGATE), sent[0]))

    await until(all_there, "all that was stored is at the hub")
    found = await ids(leader, AGGREGATE)
    case.sent = case.acknowledged = sender.stored
    epoch = since_epoch(found, sent[0])
    case.lost = len(set(taken) - set(found)) + len(set(sent) - set(epoch))
    case.duplicates = len(epoch) - len(set(epoch))
    case.sent_again = len(found) - len(set(found))
    case.seen.append(
        f"{len(taken)} messages at the old hub, {len(found)} at the new one, {sender.refused} refused"
    )
    assert (case.lost, case.duplicates) == (0, 0)
    # One that was under way when the leaf's agent started again may be stored without an answer.
    assert sender.stored <= await readings(leaf) <= sender.stored + sender.refused
