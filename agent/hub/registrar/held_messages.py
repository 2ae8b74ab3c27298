"""Finds the hub's messages at cursors and checkpoints, and answers leaves' cursor requests."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Container
from typing import Final

import msgspec
import structlog
from nats.aio.msg import Msg

from agent.base.wait import loop_time, timeout
from agent.contract import (
    Checkpoint,
    ContractError,
    CursorAnswer,
    CursorRequest,
    batch_subject,
    leaf_stream,
    leaf_subjects,
    parse_cursor_request,
)
from agent.hub.cells import CellStreams
from agent.hub.registrar.aggregate import Observation, source_state
from agent.hub.registrar.aggregates import Aggregates
from agent.hub.registrar.answer import StoredMessage, agreed, class_answer, held_now, proposal, stored
from agent.hub.registrar.fleet_state import FleetState
from agent.hub.registrar.gaps import GapSearch
from agent.hub.registrar.problems import Readiness
from agent.hub.registrar.quota import Allowance
from agent.hub.registrar.records import RECREATED, ClassRecord
from agent.jetstream import JetStreamError, StreamInfo, respond

LOOK_SECONDS: Final = 0.01
MAX_QUESTION: Final = 4096
_AT_ONCE: Final = 100
_EVERY: Final = 0.01
_ANSWER_SECONDS: Final = 4.0

log = structlog.get_logger("registrar")


class ProvenCheckpoints:
    """Checkpoints seen in an aggregate while its server runs."""

    def __init__(self) -> None:
        self._proven: dict[tuple[str, str], deque[tuple[str, Checkpoint]]] = {}

    def clear(self) -> None:
        """Forget all."""
        self._proven.clear()

    def add(self, domain: str, cls: str, checkpoint: Checkpoint, info: StreamInfo) -> None:
        proven = self._proven.setdefault((domain, cls), deque(maxlen=2))
        proven.append((info.created, checkpoint))

    def holds(self, domain: str, cls: str, checkpoint: Checkpoint, info: StreamInfo) -> bool:
        return (info.created, checkpoint) in self._proven.get((domain, cls), ())


class HeldMessages:
    """Looks up messages. All methods raise `ApiError` or `UnavailableError`."""

    def __init__(self, streams: CellStreams, fleet: FleetState, gaps: GapSearch) -> None:
        self._streams, self.fleet, self.gaps = streams, fleet, gaps
        self.proven = ProvenCheckpoints()

    async def newest(self, domain: str, cls: str, epoch: str, seen: Observation) -> Checkpoint | None:
        """Return an epoch's newest complete message with id, or None."""
        record = self.fleet.record(domain, cls)
        if record is None:
            return None
        record = await self.with_held(domain, cls, seen, record)
        self.fleet.put(domain, cls, record)
        if record.epoch != epoch or record.held is None or record.lost:
            return None
        batch = await self.newest_batch(domain, cls, record, seen.info)
        place = class_answer(record, "", None, batch).checkpoint
        stretch = await self.gaps.look(domain, cls, record, seen)
        return place if place is not None and place.hub_seq <= stretch.whole_to else None

    async def remember(self, domain: str, cls: str, seen: Observation) -> None:
        """Record the message at a class's cursor, unless the class is dropped."""
        record = self.fleet.record(domain, cls)
        if record is not None:
            self.fleet.put(domain, cls, await self.with_held(domain, cls, seen, record))

    async def with_held(self, domain: str, cls: str, seen: Observation, record: ClassRecord) -> ClassRecord:
        """Return the `record` with this look's position."""
        newest, info = None, seen.info
        if record.stream_created != info.created and not record.lost:
            # It was deleted and created since the record was looked up a moment ago.
            lost = RECREATED.format(info.name)
            return msgspec.structs.replace(record, held=None, checkpoint=None, proposed=None, lost=lost)
        held, state = record.held, source_state(seen, domain, cls, record.epoch)
        if state is not None and state.seq and (held is None or held.seq < state.seq or not held.message_id):
            newest = await self._newest(domain, cls, leaf_subjects(domain, cls), info)
        current = self.fleet.record(domain, cls) or record
        if current.epoch != record.epoch:
            return current
        held = held_now(current.held, state, newest, info)
        if newest is not None and (found := proposal(held, info.name)) is not None:
            self.proven.add(domain, cls, found, info)
        return msgspec.structs.replace(current, held=held)

    async def newest_batch(
        self, domain: str, cls: str, record: ClassRecord, info: StreamInfo
    ) -> StoredMessage | None:
        """Return the newest batch if the cursor's message has no id."""
        if record.held is None or record.held.message_id:
            return None
        return await self._newest(domain, cls, batch_subject(domain, cls, ">"), info)

    async def agreed(
        self, domain: str, cls: str, checkpoint: Checkpoint, record: ClassRecord, info: StreamInfo
    ) -> bool | None:
        """Tell whether a checkpoint holds (`answer.agreed`)."""
        if self.proven.holds(domain, cls, checkpoint, info):
            return True
        message = None
        if checkpoint.hub_stream == info.name:
            message = await self._streams.of(info.name).get_message(info.name, seq=checkpoint.hub_seq)
        answer = agreed(checkpoint, leaf_stream(domain, cls), record, info, message)
        if answer:
            self.proven.add(domain, cls, checkpoint, info)
        return answer

    async def _newest(self, domain: str, cls: str, subject: str, info: StreamInfo) -> StoredMessage | None:
        message = await self._streams.of(info.name).get_message(info.name, last_by_subject=subject)
        return stored(message, leaf_stream(domain, cls))


class Cursors:
    """Answers requests of `domains`, looking at most each `LOOK_SECONDS`; clusters share one more look."""

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
        """Answer a request in a task."""
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
            async with timeout(_ANSWER_SECONDS):
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
