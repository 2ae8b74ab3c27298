"""Answers leaves whose senders wait for the hub: which of their messages it holds. Looks at the aggregates no
more often than each `LOOK_SECONDS` however many ask, and changes nothing."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Container
from typing import Final

import structlog
from nats.aio.msg import Msg

from agent.base.wait import loop_time
from agent.contract import Checkpoint, ContractError, CursorAnswer, CursorRequest, parse_cursor_request
from agent.hub.registrar.aggregates import Aggregates
from agent.hub.registrar.announce_service import respond
from agent.hub.registrar.fleet_state import FleetState
from agent.hub.registrar.held_messages import HeldMessages
from agent.hub.registrar.problems import Readiness
from agent.hub.registrar.quota import Allowance
from agent.jetstream import JetStreamError

LOOK_SECONDS: Final = 0.01
MAX_QUESTION: Final = 4096
_AT_ONCE: Final = 100
_EVERY: Final = 0.01
_ANSWER_SECONDS: Final = 4.0

log = structlog.get_logger("registrar")


class Cursors:
    """Answers the questions of these `domains`."""

    def __init__(
        self,
        held: HeldMessages,
        fleet: FleetState,
        aggregates: Aggregates,
        domains: Container[str],
        readiness: Readiness,
    ) -> None:
        self._held, self._fleet, self._aggregates = held, fleet, aggregates
        self._domains, self._readiness = domains, readiness
        self._allowances = defaultdict[str, Allowance](lambda: Allowance(_AT_ONCE, _EVERY))
        self._busy: set[str] = set()

    async def receive(self, msg: Msg, group: asyncio.TaskGroup) -> None:
        """Answer a question, in a task of `group`."""
        domain = msg.subject.rpartition(".")[2]
        if (why := self._turned_away(domain, msg.data)) is not None:
            await respond(msg, CursorAnswer(refused=why).encode())
            return
        self._busy.add(domain)
        group.create_task(self._answer(domain, msg))

    def _turned_away(self, domain: str, data: bytes) -> str | None:
        if domain not in self._domains or domain not in self._fleet.leaves:
            return f"{domain!r} has not been taken in"
        if len(data) > MAX_QUESTION:
            return f"cursor: {len(data)} bytes are above the limit of {MAX_QUESTION}"
        if domain in self._busy or not self._allowances[domain].take(loop_time()):
            return f"{domain!r} asks too often"
        return None

    async def _answer(self, domain: str, msg: Msg) -> None:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                answer = await self._answered(domain, parse_cursor_request(msg.data))
        except (ContractError, JetStreamError) as error:
            answer = CursorAnswer(refused=str(error))
        except TimeoutError:
            answer = CursorAnswer(refused=f"the hub's server did not answer within {_ANSWER_SECONDS:.0f} s")
        except Exception:  # one question must not end the service for all the others
            log.exception("cursor request failed", domain=domain)
            answer = CursorAnswer(refused="the registrar failed on this question; its log says how")
        finally:
            self._busy.discard(domain)
        await respond(msg, answer.encode())

    async def _answered(self, domain: str, asked: CursorRequest) -> CursorAnswer:
        now = loop_time()
        reconnect = await self._readiness.wait()
        leaf, announced = self._fleet.leaves.get(domain), self._fleet.announced.get(domain)
        if leaf is None or announced is None or (leaf.machine, announced.run) != (asked.machine, asked.run):
            return CursorAnswer(refused=f"{domain!r} has to announce itself first")
        if self._fleet.ownership.contested(domain, now):
            return CursorAnswer(refused=f"{domain!r} is announced by two machines")
        held: dict[str, Checkpoint] = {}
        for cls, epoch in asked.epochs.items():
            record = leaf.classes.get(cls)
            controller = None if record is None else self._aggregates.controllers.get(record.stream)
            if record is None or controller is None or record.epoch != epoch:
                continue
            seen = await controller.observe(now - LOOK_SECONDS)
            place = await self._held.newest(domain, cls, epoch, seen)
            if place is not None:
                held[cls] = place
        self._readiness.confirm(reconnect)
        return CursorAnswer(held)
