"""A second client with the device key that publishes readings under the message ids of the agent."""

from __future__ import annotations

import pytest
import pytest_asyncio
from nats.aio.client import Client

from agent.config import Config
from agent.contract import (
    H_MESSAGE_ID,
    H_POSITION,
    H_REQUESTS,
    Letter,
    Readings,
    clock_subject,
    direct_subject,
)
from agent.jetstream import client
from tests.harness.agents import CLASS, Agent, StreamProbe, agent, chunk, probe_stream
from tests.harness.servers import ServerPair

TAKEN = "petiole_taken_message_ids_total"


class Forger:
    """Publishes readings of its own under whatever ids it likes."""

    def __init__(self, domain: str, nc: Client) -> None:
        self.subject = direct_subject(domain, CLASS, "valve", "open")
        self._nc = nc

    async def publish(self, ident: str, **headers: str) -> None:
        """Store one reading; returns when it is stored."""
        answer = await self._nc.request(
            self.subject, b"1", timeout=10, headers={H_MESSAGE_ID: ident, **headers}
        )
        assert b'"seq"' in answer.data
        assert b"duplicate" not in answer.data


@pytest_asyncio.fixture
async def forger(servers: ServerPair) -> Forger:
    """One beside the first leaf's server."""
    return Forger(servers.leaf.domain, await servers.leaf.connect("device"))


async def closed(one: Agent, probe: StreamProbe) -> tuple[tuple[tuple[int, int], ...], Readings]:
    """What the run that is stopped now says: what was stored, and its counts."""
    await one.stop()
    record = (await probe.ledgers())[-1]
    assert (record.run, record.final) == (one.run, True)
    return record.stored, record.readings


async def test_readings_whose_ids_are_taken_are_stored_under_other_numbers(
    probe: StreamProbe, config: Config, forger: Forger, capsys: pytest.CaptureFixture[str]
) -> None:
    async with agent(config) as one:
        await one.submit(chunk("a"))
        for n in range(2, 6):
            await forger.publish(f"{one.run}-{CLASS}-{n}")
        await one.submit(chunk("b", position="7"), "tail")
        await one.submit(chunk("c", key="k"))
        await one.leaf.intake.dead_letter("http", CLASS, [Letter(b"x", "a place", "why")])
        assert await probe.texts() == ["a/0", "b/0", "c/0"]
        assert (await one.leaf.intake.position("tail")).position == "7"
        assert one.value(TAKEN, **{"class": CLASS}) == 4
        stored, readings = await closed(one, probe)
    assert stored == ((1, 1), (6, 8))
    assert readings == Readings(accepted=4, stored=3, dead=1)
    said = "".join(capsys.readouterr())
    assert "message id taken by another sender" in said
    assert f"{one.run}-{CLASS}-2" in said
    assert forger.subject in said


async def test_what_a_device_says_in_headers_is_no_request_and_no_position(
    probe: StreamProbe, config: Config, forger: Forger
) -> None:
    what = chunk("a", key="k")
    assert what.request is not None
    async with agent(config) as one:
        headers = {H_REQUESTS: str(what.request), H_POSITION: "1 - 99"}
        await forger.publish(f"{one.run}-{CLASS}-1", **headers)
        await one.crash()
    async with agent(config) as one:
        await one.submit(what)
        assert (await one.leaf.intake.position("valve")).position is None
        assert await probe.texts() == ["a/0"]


async def test_ledger_records_are_stored_though_their_ids_are_taken(
    servers: ServerPair, config: Config, forger: Forger
) -> None:
    async with agent(config) as one:
        for number in range(2, 10):
            await forger.publish(f"{one.run}-{CLASS}-ledger-{number}")
        await one.submit(chunk("a"))
        assert (await closed(one, await probe_stream(servers.leaf)))[0] == ((1, 1),)


async def test_a_message_of_the_agent_is_stored_once_and_beside_one_that_has_its_id(
    servers: ServerPair, probe: StreamProbe, config: Config, forger: Forger
) -> None:
    async with agent(config):
        subject = clock_subject(servers.leaf.domain, CLASS)

        async def store(ident: str, data: bytes) -> int:
            return await client.publish_own(probe.js, probe.stream, subject, data, ident)

        assert await store("first", b"1") == await store("first", b"1")
        await forger.publish("second")
        seq = await store("second", b"2")
        held = [one for one in await probe.messages() if one.subject == subject]
        assert [(one.data, one.seq) for one in held][1:] == [(b"2", seq)]
        assert len(held) == 2
