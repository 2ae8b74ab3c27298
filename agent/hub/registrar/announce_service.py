"""Receives announcements, refuses excess and malformed ones, and answers in time."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Final

import structlog
from nats.aio.msg import Msg

from agent.base.clock import wall_ns
from agent.base.logs import Sparse
from agent.base.wait import loop_time, timeout
from agent.contract import Answer, ContractError
from agent.hub.registrar.announcements import Announcements
from agent.hub.registrar.command_consumers import CellCommands
from agent.hub.registrar.exchanges import UNKNOWN, Exchanges, StandingAnswers, encoded
from agent.hub.registrar.fleet_state import FleetState
from agent.hub.registrar.fleet_watch import FleetWatch
from agent.hub.registrar.metrics import RegistrarMetrics
from agent.hub.registrar.problems import ActiveProblems, Readiness
from agent.jetstream import JetStreamError, UnavailableError, respond

MAX_ANNOUNCE: Final = 256 * 1024
"""Bytes for `MAX_CLASSES` of 1 KiB."""
PENDING: Final = 4096
_WAITING: Final = 4096
"""Waiting announcements above which leaves must retry."""
_AT_ONCE: Final = 64
_TOO_OFTEN: Final = "{domain!r} announces itself too often; one announcement in ten seconds is enough"
_BUSY: Final = "an announcement of {domain!r} is being answered; announce again"
_ANSWER_SECONDS: Final = 4.0
"""Below a leaf's wait of five seconds."""
_CROWD: Final = "announcements"
_LATER: Final = Answer(refused="many announcements wait for an answer; announce again", later=True).encode()

log = structlog.get_logger("registrar")


class AnnounceService:
    """Answers announcements of configured domains."""

    def __init__(
        self,
        announcements: Announcements,
        commands: CellCommands,
        fleet: FleetState,
        watch: FleetWatch,
        standing: StandingAnswers,
        readiness: Readiness,
        problems: ActiveProblems,
        metrics: RegistrarMetrics,
    ) -> None:
        self._announcements = announcements
        self._commands = commands
        self._fleet = fleet
        self._watch = watch
        self._domains = announcements.domains
        self._standing = standing
        self._readiness = readiness
        self._problems = problems
        self._taken_in = metrics.announcements.labels("taken_in")
        self._refused = metrics.announcements.labels("refused")
        self._exchanges = Exchanges()
        self._reasons: dict[str, str] = {}
        """Refusals of configured domains."""
        self._busy: set[str] = set()
        self._failures = Sparse()
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def receive(self, msg: Msg, group: asyncio.TaskGroup) -> None:
        """Answer an announcement, in a task if slow."""
        domain = msg.subject.rpartition(".")[2]
        refused = self._turned_away(domain, msg.data)
        if refused is not None:
            await self._respond(domain, msg, refused)
        elif domain in self._busy:
            self._refused.inc()
            await respond(msg, Answer(refused=_BUSY.format(domain=domain), later=True).encode())
        elif self._nothing_new(domain, msg.data):
            self._taken_in.inc()
            await respond(msg, msg.data)
        elif self._exchanges.is_unknown(domain, msg.data):
            await respond(msg, UNKNOWN)  # the leaf announces again at once
        elif len(self._busy) >= _WAITING:
            self._refused.inc()
            self._problems.begin(
                _CROWD, f"{_WAITING} announcements wait; further leaves come again", hub=True
            )
            await respond(msg, _LATER)
        else:
            self._busy.add(domain)
            group.create_task(self._answer(domain, msg))

    def _nothing_new(self, domain: str, data: bytes) -> bool:
        """Tell whether a repeat has an unchanged answer, and count it."""
        exchange = self._exchanges.repeated(domain, data)
        if exchange is None:
            return False
        announce, answer, now = exchange.announce, exchange.answer, loop_time()
        # It is heard even if the hub's server is too slow to answer it: then its sources are not to be woken.
        goes_on = self._fleet.ownership.goes_on(domain, announce.run, now)
        return (
            goes_on
            and exchange.leaf is not None
            and self._problems.of(about(domain)) is None
            and self._readiness.is_at(exchange.reconnect)
            and self._standing.stands(exchange.leaf, announce, answer, self._watch.linked_at(domain))
            and self._commands.stands(announce, answer.commands, now)
            and self._fleet.may_run_announce(domain, announce.run, now)
        )

    def _turned_away(self, domain: str, data: bytes) -> Answer | None:
        """Return a refusal before reading, or None."""
        if (fault := self._readiness.server_trouble()) is not None:
            return Answer(refused=fault)
        if len(data) > MAX_ANNOUNCE:
            return Answer(refused=f"announce: {len(data)} bytes are above the limit of {MAX_ANNOUNCE}")
        if domain in self._domains and not self._fleet.may_announce(domain, loop_time()):
            return self._too_often(domain)
        return None

    def _too_often(self, domain: str) -> Answer:
        """Return the refusal of too frequent announcements, with an existing reason."""
        reason = self._reasons.get(domain)
        return Answer(refused=reason or _TOO_OFTEN.format(domain=domain), later=reason is None)

    async def _answer(self, domain: str, msg: Msg) -> None:
        try:
            async with timeout(_ANSWER_SECONDS), self._places:
                answer = await self._answered(domain, msg.data)
        except ContractError as error:
            answer = Answer(refused=str(error))
        except UnavailableError as error:
            await self._hub_fails(domain, msg, str(error))
            return
        except TimeoutError:
            await self._hub_fails(domain, msg, f"no answer within {_ANSWER_SECONDS:.0f} s")
            return
        except JetStreamError as error:
            answer = Answer(refused=f"the hub cannot take this in now: {error}", later=True)
        except Exception:  # one announcement must not end the service for all the others
            log.exception("announcement failed", domain=domain)
            answer = Answer(refused="the registrar failed on this announcement; its log says how")
        finally:
            self._busy.discard(domain)
        if not self._busy:
            self._problems.end(_CROWD, "no announcement waits")
        await self._respond(domain, msg, answer)

    async def _answered(self, domain: str, data: bytes) -> Answer:
        announce = self._exchanges.read(domain, data)
        if domain in self._domains and not self._fleet.may_run_announce(domain, announce.run, loop_time()):
            return self._too_often(domain)
        reconnect = await self._readiness.wait()
        answer = await self._announcements.answer(announce, self._watch.linked_at(domain))
        self._readiness.confirm(reconnect)
        if answer.refused is None:
            leaf = self._fleet.leaves.get(domain)
            self._watch.announced(domain, announce.machine)
            answer = dataclasses.replace(answer, commands=await self._commands.answer(announce))
            answer = self._exchanges.named(announce, answer, leaf, reconnect)
        return answer

    async def _hub_fails(self, domain: str, msg: Msg, reason: str) -> None:
        """Ask a leaf to retry while the server fails; no log per leaf."""
        self._refused.inc()
        self._failures.report(log.warning, "announcement not answered", domain=domain, reason=reason)
        await respond(msg, Answer(refused=f"the hub's server does not answer: {reason}", later=True).encode())

    async def _respond(self, domain: str, msg: Msg, answer: Answer) -> None:
        (self._taken_in if answer.refused is None else self._refused).inc()
        reason = answer.refused or next(iter(answer.refused_classes.values()), None)
        if answer.refused is not None and not answer.later and domain in self._domains:
            self._reasons[domain] = answer.refused
        elif answer.refused is None:
            self._reasons.pop(domain, None)
        if reason is not None and (not answer.later or self._problems.of(about(domain)) is None):
            self._problems.begin(about(domain), f"{domain} is refused: {reason}")
        elif reason is None and not self._fleet.ownership.contested(domain, loop_time()):
            self._problems.end(about(domain), f"{domain} is taken in")
        await respond(msg, encoded(dataclasses.replace(answer, clock=wall_ns() / 1e9), msg.data))


def about(domain: str) -> str:
    """Return the problem key of a domain."""
    return f"announcement of {domain}"
