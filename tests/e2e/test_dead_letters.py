"""What an input could not take is in the leaf's stream, numbered with its batches."""

from __future__ import annotations

import asyncio
import contextlib
import os

import pytest

from agent.config import Config, Size, StreamClass
from agent.contract import Letter, Readings, dead_subject, parse_batch_headers, parse_letter
from agent.leaf.intake import RefusalReason, RefusedError
from agent.leaf.publish.dead_letters import BURST_BYTES
from agent.testing.stored_stream import lines_of
from tests.harness.agents import CLASS, StreamProbe, agent, chunk, probe_stream
from tests.harness.servers import ServerPair


async def letters_in(probe: StreamProbe, input_name: str) -> list[tuple[int, list[Letter]]]:
    """The dead letters of an input by the number of their message, in order."""
    subject = dead_subject(probe.domain, CLASS, input_name)
    found = []
    for message in await probe.messages():
        if message.subject != subject:
            continue
        headers = parse_batch_headers(message.headers)
        rows = [parse_letter(line) for line in lines_of(message)]
        assert len(rows) == headers.count
        found.append((headers.id.n, rows))
    return found


async def test_a_dead_letter_is_numbered_with_the_batches_and_counted_as_dead(
    servers: ServerPair, config: Config
) -> None:
    letter = Letter(b"\xff{", "10.0.0.7:514", "not UTF-8")
    async with agent(config) as one:
        await one.submit(chunk("a", 3), "udp")
        await one.leaf.intake.dead_letter("udp", CLASS, [letter, letter])
        await one.submit(chunk("b"), "udp")
        assert await letters_in(await probe_stream(servers.leaf), "udp") == [(2, [letter, letter])]
        assert one.value("petiole_dead_readings_total", input="udp", **{"class": CLASS}) == 2
        assert one.value("petiole_stored_readings_total", input="udp", **{"class": CLASS}) == 4
        assert one.value("petiole_accepted_readings_total", input="udp", **{"class": CLASS}) == 6
        await one.crash()
    async with agent(config) as one:
        await one.stop()
    ledger = (await (await probe_stream(servers.leaf)).ledgers())[-1]
    assert ledger.previous is not None
    assert (ledger.previous.n, ledger.previous.readings) == (3, Readings(accepted=6, stored=4, dead=2))


async def test_garbage_without_end_is_counted_and_takes_no_more_than_its_share_of_the_stream(
    servers: ServerPair, config: Config
) -> None:
    flood = [Letter(b"x" * 900, f"f:{number}", "no") for number in range(1000)]
    async with agent(config) as one:
        await asyncio.gather(*(one.leaf.intake.dead_letter("udp", CLASS, flood) for _ in range(5)))
        found = await letters_in(await probe_stream(servers.leaf), "udp")
        kept = sum(len(rows) for _, rows in found)
        assert 0 < kept * 900 < BURST_BYTES
        assert one.value("petiole_omitted_letters_total", input="udp", **{"class": CLASS}) == 5000 - kept
        assert one.leaf.status()["classes"][CLASS]["readings"]["dead"] == 5000
        await one.submit(chunk("a"), "udp")
        await one.stop()
    ledger = (await (await probe_stream(servers.leaf)).ledgers())[-1]
    assert ledger.readings == Readings(accepted=5001, stored=1, dead=5000)
    assert ledger.stored == ((1, ledger.n),)


async def test_letters_that_are_refused_are_not_counted_and_are_stored_by_the_next_try(
    probe: StreamProbe, config: Config
) -> None:
    letter = Letter(b"x", "f:0", "no")
    config.class_ = [StreamClass(max_bytes=Size(64 * 1024))]
    async with agent(config) as one:
        with contextlib.suppress(RefusedError):
            while True:
                await one.submit(chunk(os.urandom(5_000).hex()), "udp")
        with pytest.raises(RefusedError) as caught:
            await one.leaf.intake.dead_letter("udp", CLASS, [letter])
        assert caught.value.reason is RefusalReason.FULL
        assert one.leaf.status()["classes"][CLASS]["readings"]["dead"] == 0
        await probe.js.purge(probe.stream, (await probe.js.stream_info(probe.stream)).last)
        one.leaf._sender.has_room(CLASS)
        await one.leaf.intake.dead_letter("udp", CLASS, [letter])
        assert [rows for _, rows in await letters_in(probe, "udp")] == [[letter]]
