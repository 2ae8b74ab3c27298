"""A second client with the device key that publishes readings under the message ids of the agent."""

from __future__ import annotations

import asyncio
from pathlib import Path

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
from agent.jetstream import RawMessage, UnavailableError, client
from agent.leaf.inputs.http import HttpOptions
from agent.leaf.publish import sender
from agent.leaf.publish.batch import NotStored, PublishAnswer, StoredAck, parse_ack
from agent.leaf.publish.stream_recovery import StreamRecovery
from tests.harness.agents import CLASS, Agent, StreamProbe, agent, chunk, insist, probe_stream
from tests.harness.linked_pair import open_linked_pair
from tests.harness.servers import ServerPair
from tests.harness.wait import until

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
    servers: ServerPair, config: Config, forger: Forger, capsys: pytest.CaptureFixture[str]
) -> None:
    probe = await probe_stream(servers.leaf)
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


async def test_an_answer_at_level_hub_is_about_the_readings_and_not_about_their_id(
    servers: ServerPair, tmp_path: Path, forger: Forger
) -> None:
    async with open_linked_pair(servers, tmp_path / "state", inputs=[HttpOptions(ack="hub")]) as pair:
        await pair.agent.submit(chunk("a"))
        await forger.publish(f"{pair.agent.run}-{CLASS}-{pair.agent.leaf._publisher._ledgers[CLASS].n + 1}")
        await pair.agent.submit(chunk("b"))
        assert {"a/0", "b/0"} <= {*await pair.arrived()}
        assert pair.agent.value(TAKEN, **{"class": CLASS}) == 1


async def test_an_id_that_is_taken_while_the_connection_is_made_again_settles_nothing(
    servers: ServerPair, config: Config, forger: Forger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worst moment: the agent has looked for its batch and has not sent it again yet."""
    look = StreamRecovery.ids_above

    async def then_forge(self: StreamRecovery, cls: str, seq: int) -> dict[tuple[str, str], int]:
        found = await look(self, cls, seq)
        assert found == {}
        await forger.publish(f"{one.run}-{CLASS}-2")
        return found

    async with agent(config) as one:
        await one.submit(chunk("a", key="first"))
        servers.leaf.pause()
        waiting = asyncio.create_task(insist(one, chunk("b", key="k")))
        await until(lambda: len(list(one.leaf._sender._in_flight)) == 1, "the batch is sent")
        monkeypatch.setattr(StreamRecovery, "ids_above", then_forge)
        await servers.leaf.kill()
        await servers.leaf.start()
        await waiting
        probe = await probe_stream(servers.leaf)
        assert await probe.texts() == ["a/0", "b/0"]
        assert (await closed(one, probe))[0] == ((1, 1), (3, 3))


async def test_a_server_that_ends_between_the_answer_and_the_look_costs_no_reading(
    servers: ServerPair, config: Config, forger: Forger, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = StreamRecovery.message

    async def after_the_end(self: StreamRecovery, cls: str, seq: int) -> RawMessage | None:
        monkeypatch.setattr(StreamRecovery, "message", look)
        await servers.leaf.kill()
        await servers.leaf.start()
        with pytest.raises(UnavailableError):
            await look(self, cls, seq)
        raise UnavailableError("the connection has ended")

    monkeypatch.setattr(StreamRecovery, "message", after_the_end)
    async with agent(config) as one:
        await forger.publish(f"{one.run}-{CLASS}-1")
        await insist(one, chunk("a", key="k"))
        probe = await probe_stream(servers.leaf)
        assert await probe.texts() == ["a/0"]
        assert (await closed(one, probe))[0] == ((2, 2),)


async def test_a_batch_that_its_own_first_attempt_stored_keeps_its_number(
    servers: ServerPair, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = parse_ack

    def misread(data: bytes) -> PublishAnswer:
        monkeypatch.setattr(sender, "parse_ack", read)
        assert read(data) == StoredAck(2, duplicate=False)
        return NotStored("an error that may pass", None)

    async with agent(config) as one:
        monkeypatch.setattr(sender, "parse_ack", misread)
        await one.submit(chunk("a"))
        probe = await probe_stream(servers.leaf)
        assert await probe.texts() == ["a/0"]
        assert one.value(TAKEN, **{"class": CLASS}) == 0
        assert one.value("petiole_publish_retries_total", **{"class": CLASS}) == 1
        assert (await closed(one, probe))[0] == ((1, 1),)


async def test_what_a_device_says_in_headers_is_no_request_and_no_position(
    servers: ServerPair, config: Config, forger: Forger
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
        assert await (await probe_stream(servers.leaf)).texts() == ["a/0"]


async def test_ledger_records_are_stored_though_their_ids_are_taken(
    servers: ServerPair, config: Config, forger: Forger
) -> None:
    async with agent(config) as one:
        for number in range(2, 10):
            await forger.publish(f"{one.run}-{CLASS}-ledger-{number}")
        await one.submit(chunk("a"))
        assert (await closed(one, await probe_stream(servers.leaf)))[0] == ((1, 1),)


async def test_a_message_of_the_agent_is_stored_once_and_beside_one_that_has_its_id(
    servers: ServerPair, config: Config, forger: Forger
) -> None:
    async with agent(config):
        probe = await probe_stream(servers.leaf)
        subject = clock_subject(servers.leaf.domain, CLASS)

        async def store(ident: str, data: bytes) -> int:
            return await client.publish_own(probe.js, probe.stream, subject, data, ident)

        assert await store("first", b"1") == await store("first", b"1")
        await forger.publish("second")
        seq = await store("second", b"2")
        held = [one for one in await probe.messages() if one.subject == subject]
        assert [(one.data, one.seq) for one in held][1:] == [(b"2", seq)]
        assert len(held) == 2
