"""A machine whose clock was wrong when it started, on a real server. Its clocks are a test's own: the real
ones are never set."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.base import clock
from agent.contract import (
    H_CLOCK,
    H_SEALED_AT,
    Correction,
    batch_subject,
    clock_subject,
    parse_clock,
    parse_correction,
)
from tests.harness.agents import StreamProbe, agent, chunk, leaf_config, probe_stream
from tests.harness.clocks import SECOND, SYNCHRONISED, FakeMachine
from tests.harness.servers import ServerPair
from tests.harness.wait import until

YEARS = 50 * 365 * 24 * 3600 * SECOND


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    """A machine that woke up fifty years ago."""
    fake = FakeMachine(behind=YEARS)
    monkeypatch.setattr(clock, "machine", fake)
    return fake


async def corrections(held: StreamProbe) -> list[Correction]:
    """The records that the stream holds."""
    subject = clock_subject(held.domain, "normal")
    return [parse_correction(one.data) for one in await held.messages() if one.subject == subject]


async def is_stored(held: StreamProbe) -> bool:
    """Whether there is one."""
    return bool(await corrections(held))


async def test_what_was_stamped_before_the_first_synchronisation_is_corrected_by_a_record(
    servers: ServerPair, tmp_path: Path, machine: FakeMachine
) -> None:
    config = leaf_config(servers.leaf, tmp_path / "state")
    held = await probe_stream(servers.leaf)
    async with agent(config) as one:
        await one.submit(chunk("before"))
        assert one.value("petiole_clock_synchronised") == 0
    async with agent(config) as one:
        machine.behind, machine.state = 0, SYNCHRONISED
        await until(lambda: is_stored(held), "the correction is stored")
        assert one.value("petiole_clock_synchronised") == 1
        assert one.value("petiole_clock_steps_total") == 1
        await until(lambda: one.state().corrections == [], "it is not kept any longer")

    (said,) = await corrections(held)
    assert abs(said.by - YEARS) < SECOND
    (batch,) = [
        one for one in await held.messages() if one.subject == batch_subject(held.domain, "normal", "http")
    ]
    sealed = parse_clock(batch.headers[H_CLOCK])
    assert (sealed.boot, sealed.synchronised) == (said.boot, False)
    assert said.since <= sealed.monotonic < said.until
    assert abs(int(batch.headers[H_SEALED_AT]) - sealed.monotonic - said.offset) < SECOND // 10
