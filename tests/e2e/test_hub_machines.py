"""A hub of three machines, with processes of their own: who leads, and what a stopped leader must not do."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from functools import partial

import pytest
import pytest_asyncio

from agent.contract import Committed, committed_subject
from agent.jetstream import JetStream, StreamInfo
from hub_jobs.source.connection import Connection
from hub_jobs.source.server import Server
from tests.harness.hub_machines import HubMachines, answered, connected_to, hubs_and_leaf
from tests.harness.registrar import LAKE, LeafHand
from tests.harness.streams import AGGREGATE
from tests.harness.wait import until, wait_for

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[HubMachines, LeafHand]]:
    """Three machines of a hub, and a leaf that dials all of them, with a source at the hub. Each test leaves
    them running."""
    async with hubs_and_leaf(tmp_path_factory.mktemp("hubs")) as running:
        yield running


async def holds(js: JetStream, count: int) -> StreamInfo:
    """The aggregate, once it holds so many messages."""

    async def reached() -> bool:
        return (await js.stream_info(AGGREGATE)).messages >= count

    await until(reached, f"{count} messages are at the hub")
    return await js.stream_info(AGGREGATE)


async def test_a_leader_that_was_stopped_past_its_lease_changes_nothing_when_it_goes_on(
    site: tuple[HubMachines, LeafHand],
) -> None:
    hubs, leaf = site
    first = hubs.leader()
    stopped = hubs.agents[first]
    jobs = await connected_to(hubs, "jobs", first)
    await leaf.store(20)
    info = await holds(JetStream(jobs), 20)
    request = Committed(AGGREGATE, info.created, 20, lake=LAKE).encode()
    assert stopped.process is not None
    stopped.process.send_signal(signal.SIGSTOP)
    # Only the stopped agent has this request, in the buffer of its socket: nobody else takes any yet.
    await jobs.publish(committed_subject(AGGREGATE), request)
    await jobs.flush()
    second = await asyncio.to_thread(hubs.leader, first)
    stopped.process.send_signal(signal.SIGCONT)
    said = f"standby: {second} leads the hub"
    await asyncio.to_thread(
        wait_for, lambda: stopped.status().get("standby") == said, "the stopped agent stands by"
    )
    assert "committed messages purged" not in stopped.log.read_text()
    assert (await JetStream(jobs).stream_info(AGGREGATE)).first == 1
    # The same request does purge when it reaches one that leads.
    reply = await jobs.request(committed_subject(AGGREGATE), request, timeout=60)
    assert json.loads(reply.data)["purged"] == 20
    await jobs.close()


async def test_another_agent_leads_after_the_leaders_is_killed_and_says_so(
    site: tuple[HubMachines, LeafHand],
) -> None:
    hubs, leaf = site
    first = hubs.leader()
    standby = next(agent for name, agent in hubs.agents.items() if name != first)
    assert standby.status_of("/readyz") == 200
    assert standby.status()["standby"] == f"standby: {first} leads the hub"
    assert standby.metric("petiole_hub_leading") == 0
    assert standby.metric("petiole_announcements_total") == 0
    shown = standby.petiole("status")
    assert (shown.returncode, shown.stdout.splitlines()[0]) == (0, f"hub: standby: {first} leads the hub")
    hubs.agents[first].end(signal.SIGKILL)
    await asyncio.to_thread(hubs.leader, first)
    await leaf.announce()
    await asyncio.to_thread(hubs.agents[first].start)


async def test_another_machine_takes_over_when_one_goes_with_its_server(
    site: tuple[HubMachines, LeafHand],
) -> None:
    hubs, leaf = site
    first = hubs.leader()
    other = await connected_to(hubs, "jobs", next(name for name in hubs.agents if name != first))

    async def apart() -> bool:
        info = await JetStream(other).api(f"STREAM.INFO.{AGGREGATE}")
        return info["cluster"].get("leader") not in (None, "", first)

    await until(apart, "another server than that of the leading agent leads the aggregate")
    await other.close()
    await asyncio.to_thread(hubs.kill, first)
    second = await asyncio.to_thread(hubs.leader, first)
    jobs = await connected_to(hubs, "jobs", second)
    members = [hubs.agents[name].member for name in (first, second)]
    url = ",".join(member.nats_url for member in members)
    with Connection(Server(url, seed_file=str(members[1].state / "keys" / "jobs.nk"))) as connection:
        assert connection.api(f"STREAM.INFO.{AGGREGATE}"), "a job goes on to the next server"
    before = (await JetStream(jobs).stream_info(AGGREGATE)).last
    await until(partial(answered, leaf), "the leaf is answered")
    await leaf.store(20)

    async def arrived() -> bool:
        return (await JetStream(jobs).stream_info(AGGREGATE)).last == before + 20

    await until(arrived, "what the leaf stored since is at the hub")
    await jobs.close()
    await asyncio.to_thread(hubs.agents[first].start)
