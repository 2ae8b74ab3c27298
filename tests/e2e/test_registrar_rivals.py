"""Two machines with one domain: with ids of their own, and one a copy of the other's disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from nats.errors import Error as NatsError
from structlog.testing import capture_logs

from agent.contract import H_MESSAGE_ID, Answer, announce_subject, parse_answer
from agent.demo.proxy import Proxy
from agent.jetstream import JetStreamError
from tests.harness.registrar import MACHINE, HubHand, LeafHand, hub_of
from tests.harness.servers import Leaf, ServerPair, make_leaf
from tests.harness.streams import AGGREGATE, make_leaf_stream
from tests.harness.wait import until


@asynccontextmanager
async def another(servers: ServerPair, directory: Path, machine: str) -> AsyncIterator[Leaf]:
    """A second server with the domain and the key of the first leaf."""
    first, proxy = servers.leaf, Proxy(servers.hub.leaf_port)
    await proxy.start()
    leaf = make_leaf(
        directory, first.domain, first.config.classes, proxy, first.config.link_key_file, machine
    )
    await leaf.start()
    try:
        yield leaf
    finally:
        await leaf.close()
        await proxy.stop()


async def announced(leaf: LeafHand, machine: str = MACHINE) -> Answer | None:
    """The answer to an announcement over a link that may go down at any moment."""
    data = replace(await leaf.announcement(), machine=machine).encode()
    try:
        return parse_answer((await leaf.nc.request(announce_subject(leaf.domain), data, timeout=10)).data)
    except NatsError:
        return None


async def ids_at(hub: HubHand, run: str) -> set[str]:
    """The ids of a run's messages that the hub holds."""
    info, found = await hub.aggregate(), set()
    for seq in range(info.first, info.last + 1):
        message = await hub.js.get_message(AGGREGATE, seq=seq)
        if message is not None and (name := message.headers[H_MESSAGE_ID]).startswith(run):
            found.add(name)
    return found


async def test_a_second_machine_is_refused_while_the_first_flows_on_and_both_are_told(
    servers: ServerPair, tmp_path: Path
) -> None:
    hub, first = await hub_of(servers), await LeafHand.make(servers.leaf)
    with capture_logs() as logs:
        async with hub.registrar() as registrar, another(servers, tmp_path / "other", "other") as leaf:
            await first.announce()
            await leaf.wait_linked()
            second = await LeafHand.make(leaf)
            await second.store(5)
            for _ in range(2):
                answer = await announced(second, "other")
                assert answer is not None
                assert "belongs to machine test" in (answer.refused or "")
            assert "belongs to machine test" in registrar.status()["leaves"][first.domain]["state"]
            assert (await first.announce()).state == "contested"
            await hub.holds(first.domain, await first.store(5))
            assert await ids_at(hub, second.run) == set()
            assert len(await ids_at(hub, first.run)) == 5
    assert len([line for line in logs if line.get("about") == "rival of edge-1"]) == 1


async def test_a_copied_disk_is_found_by_its_run_and_the_first_machine_goes_on_with_a_new_epoch(
    servers: ServerPair, tmp_path: Path
) -> None:
    hub, first = await hub_of(servers), await LeafHand.make(servers.leaf)
    async with hub.registrar() as registrar:
        await first.announce()
        await hub.holds(first.domain, await first.store(5))
        async with another(servers, tmp_path / "copy", "test") as leaf:
            copy = LeafHand(leaf, await leaf.connect("agent"))
            copy.epoch = first.epoch
            await make_leaf_stream(copy.nc, copy.domain, copy.epoch)
            answers: list[Answer | None] = []
            async with asyncio.timeout(30):
                while not told(answers):
                    answers += [await announced(copy), await announced(first)]
                    await asyncio.sleep(0.5)
            assert "two machines that take turns" in registrar.status()["leaves"][first.domain]["state"]
            await first.next_epoch(start=1)

            async def taken_in() -> bool:
                answer = await announced(first)
                return answer is not None and not answer.refused and answer.classes["normal"].agreed is None

            await until(taken_in, "the new epoch is taken in")
            await first.store(5)
        await until(lambda: all_there(hub, first), "all of the first machine is at the hub")
        await until(taken_in, "the first machine is answered")


def told(answers: list[Answer | None]) -> bool:
    """Whether the copy was refused for what it is and the first machine knows of it."""
    said = [one for one in answers if one is not None]
    refused = any("take turns" in (one.refused or "") for one in said)
    normal = [one.classes["normal"] for one in said if one.classes]
    return refused and any(one.state == "contested" and one.agreed is False for one in normal)


async def all_there(hub: HubHand, leaf: LeafHand) -> bool:
    """Whether the hub holds every message of a leaf."""
    try:
        return len(await ids_at(hub, leaf.run)) == leaf.sent
    except JetStreamError:
        return False
