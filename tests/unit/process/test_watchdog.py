"""When an agent may be called alive."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import cast

import pytest
from msgspec import field

from agent.base.machine import Notifier
from agent.base.metrics import Metrics
from agent.process import watchdog
from agent.process.watchdog import SILENT_SECONDS, STALLED_SECONDS, ServerSilence, Vitals, ailment
from agent.server.health import ServerHealth
from agent.server.process import EmbeddedServer


@dataclass
class Worker:
    well: bool = True
    waits: float = 0.0

    def ready(self) -> tuple[bool, str]:
        return self.well, "the local NATS server does not answer"

    def sentence(self) -> str:
        return "the hub holds everything"

    def stalled(self) -> float:
        return self.waits


class Kept(Notifier, frozen=True):
    told: asyncio.Queue[str] = field(default_factory=asyncio.Queue)

    def _send(self, *lines: str) -> None:
        for line in lines:
            self.told.put_nowait(line)

    async def hears(self, line: str) -> list[str]:
        """What is told up to this line."""
        before: list[str] = []
        while (told := await self.told.get()) != line:
            before.append(told)
        return before

    def forget(self) -> None:
        while not self.told.empty():
            self.told.get_nowait()


@dataclass
class Server:
    pid: int | None = 7
    is_starting: bool = False


def test_a_path_that_stands_and_a_server_that_is_silent_are_no_life() -> None:
    assert ailment(STALLED_SECONDS, SILENT_SECONDS) is None
    assert "publish path" in (ailment(STALLED_SECONDS + 1, 0.0) or "")
    assert "NATS server" in (ailment(0.0, SILENT_SECONDS + 1) or "")


async def test_the_watchdog_is_fed_while_nothing_ails_and_the_sentence_says_what_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watchdog, "_LOOK_SECONDS", 0.001)
    kept, worker = Kept("@none", watchdog=0.004), Worker()
    telling = asyncio.create_task(Vitals(kept, worker, lambda: 0.0).run())
    async with asyncio.timeout(30):
        assert await kept.hears("WATCHDOG=1") == ["READY=1", "STATUS=the hub holds everything"]
        assert await kept.hears("WATCHDOG=1") == []
        worker.waits = STALLED_SECONDS + 1
        await kept.hears(f"STATUS={ailment(worker.waits, 0.0)}")
        kept.forget()
        await asyncio.sleep(0.05)
        assert kept.told.empty()
        worker.waits = 0.0
        assert await kept.hears("WATCHDOG=1") == ["STATUS=the hub holds everything"]
    telling.cancel()


async def test_an_agent_whose_server_is_away_is_ready_in_the_end_and_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watchdog, "_LOOK_SECONDS", 0.001)
    monkeypatch.setattr(watchdog, "READY_SECONDS", 0.02)
    kept = Kept("@none", watchdog=0.004)
    telling = asyncio.create_task(Vitals(kept, Worker(well=False), lambda: 0.0).run())
    async with asyncio.timeout(30):
        before = await kept.hears("READY=1")
    telling.cancel()
    assert before[:2] == ["STATUS=the local NATS server does not answer", "WATCHDOG=1"]


async def test_a_server_is_silent_only_while_it_runs_is_not_being_started_and_does_not_answer() -> None:
    server, health = Server(), ServerHealth(Metrics())
    silence = ServerSilence(cast(EmbeddedServer, server), health)
    assert silence.seconds() == 0
    await asyncio.sleep(0.02)
    assert silence.seconds() > 0
    no_server = {"is_starting": False, "pid": None}
    for part, change in ((health, {"answers": 1}), (server, {"is_starting": True}), (server, no_server)):
        await asyncio.sleep(0.01)
        for name, value in change.items():
            setattr(part, name, value)
        assert silence.seconds() == 0
