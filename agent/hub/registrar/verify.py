"""Verifies a run's batches by an aggregate's headers, read-only, for a few seconds per request and domain."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import structlog
from nats.aio.msg import Msg

from agent.base.wait import loop_time, timeout
from agent.contract import (
    H_MESSAGE_ID,
    H_RESENT,
    H_SOURCE,
    MAX_HELD,
    MAX_WINDOW,
    ContractError,
    Edge,
    MessageId,
    VerifiedRun,
    VerifyAnswer,
    VerifyRequest,
    leaf_stream,
    numbered_subjects,
    parse_message_id,
    parse_verify_request,
)
from agent.contract.ranges import RangeSet, without
from agent.hub.cells import CellStreams
from agent.hub.registrar.aggregate import observed, parse_source_header
from agent.hub.registrar.fleet_state import FleetState
from agent.jetstream import JetStreamError, StreamInfo, UnavailableError, respond
from agent.jetstream.readers import StoredHeaders, read_headers

MAX_REQUEST: Final = 128 * 1024
_AT_ONCE: Final = 2
_WAITING: Final = 64
_LOOK_SECONDS: Final = 3.0
_ANSWER_SECONDS: Final = 8.0
"""Below the leaf's wait of ten seconds."""

log = structlog.get_logger("registrar")


class RunScan:
    """Collects one run's headers. Pure."""

    def __init__(self, request: VerifyRequest, stream: str, found: VerifiedRun) -> None:
        self._stream, self._request = stream, request
        self._held = RangeSet(found.held)
        self._cut, self._edge, self._next = found.cut, found.edge, found.next
        self.last = request.last

    def take(self, message: StoredHeaders) -> None:
        """Take a message in order; other leaf streams' are ignored."""
        self._next = message.seq + 1
        try:
            name, leaf_seq = parse_source_header(message.headers.get(H_SOURCE, ""))
            ident = parse_message_id(message.headers.get(H_MESSAGE_ID, ""))
        except ContractError:
            return
        if name != self._stream or ident.cls != self._request.cls:
            return
        # A batch that was published again stands where its repeat came, and tells nothing of what was before.
        if H_RESENT not in message.headers:
            self._edge = _edge(self._edge, ident, leaf_seq)
        wanted = self._request.first <= ident.n and (self.last is None or ident.n <= self.last)
        if ident.run == self._request.run and wanted:
            self._held.add(ident.n)
            if len(self._held) > MAX_HELD:
                self.last = self._held.drop_highest() - 1

    def found(self) -> VerifiedRun:
        return VerifiedRun(self._held.ranges(), self._cut, self._edge, self._next)

    def answered(self, info: StreamInfo, cursor: int, *, complete: bool) -> VerifyAnswer:
        """Return the present answer."""
        found = self.found()
        answer = VerifyAnswer(info.name, info.created, info.last, cursor, self.last, found)
        if not complete:
            return answer
        first, last = self._request.first, self._held.highest if self.last is None else self.last
        purged = found.purged(self._request.run)
        return replace(
            answer,
            last=last,
            complete=True,
            lacking=tuple(without([(max(first, purged + 1), last)], found.held)),
            unknown=tuple(without([(first, min(last, purged))], found.held)),
        )


def _edge(edge: Edge | None, ident: MessageId, leaf_seq: int) -> Edge:
    if edge is None:
        return Edge(ident.run, leaf_seq, ident.n, 1)
    if edge.run != ident.run or edge.batches >= MAX_WINDOW:
        return edge
    return replace(edge, n=max(edge.n, ident.n), batches=edge.batches + 1)


def begun(found: VerifiedRun, info: StreamInfo) -> VerifiedRun:
    """Return where to continue, from the start after a purge of unread messages."""
    if found.next and info.first <= found.next <= info.last + 1:
        return found
    return VerifiedRun(cut=info.first > 1, next=max(info.first, 1))


class Verifier:
    """Answers `petiole.v1.verify.<domain>` for configured `classes`."""

    def __init__(
        self, streams: CellStreams, classes: Mapping[str, frozenset[str]], fleet: FleetState
    ) -> None:
        self._streams, self._classes, self._fleet = streams, classes, fleet
        self._busy: set[str] = set()
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def take(self, msg: Msg, group: asyncio.TaskGroup) -> None:
        """Answer in a task, or refuse at once."""
        domain = msg.subject.rpartition(".")[2]
        refused = self._turned_away(domain, msg.data)
        if refused is not None:
            await respond(msg, VerifyAnswer(refused=refused).encode())
            return
        self._busy.add(domain)
        group.create_task(self._answer(domain, msg))

    def _turned_away(self, domain: str, data: bytes) -> str | None:
        if domain not in self._classes:
            return f"domain {domain!r:.80} is not among the leaves in the hub's configuration"
        if len(data) > MAX_REQUEST:
            return f"verify: {len(data)} bytes are above the limit of {MAX_REQUEST}"
        if domain in self._busy:
            return f"a verification of {domain!r} is under way; ask again when it has ended"
        if len(self._busy) >= _WAITING:
            return f"{_WAITING} verifications wait; ask again later"
        return None

    async def _answer(self, domain: str, msg: Msg) -> None:
        try:
            async with timeout(_ANSWER_SECONDS), self._places:
                answer = await self._look(domain, parse_verify_request(msg.data))
        except ContractError as error:
            answer = VerifyAnswer(refused=str(error))
        except JetStreamError as error:
            answer = VerifyAnswer(refused=f"the hub cannot look now: {error}")
        except TimeoutError:
            answer = VerifyAnswer(refused="the hub is busy with other verifications; ask again later")
        except Exception:  # one request must not end the registrar
            log.exception("verification failed", domain=domain)
            answer = VerifyAnswer(refused="the registrar failed on this verification; its log says how")
        finally:
            self._busy.discard(domain)
        await respond(msg, answer.encode())

    async def _look(self, domain: str, request: VerifyRequest) -> VerifyAnswer:
        if request.cls not in self._classes[domain]:
            raise ContractError(f"class {request.cls!r} of {domain!r} is not in the hub's configuration")
        info, cursor = await self._aggregate_of(domain, request.cls)
        look = RunScan(request, leaf_stream(domain, request.cls), begun(request.found, info))
        start = {
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": look.found().next,
            "filter_subjects": numbered_subjects(domain, request.cls),
        }
        until, js = loop_time() + _LOOK_SECONDS, self._streams.of(info.name)
        ended = await read_headers(js.nc, js, info.name, start, look.take, enough=lambda: loop_time() > until)
        after = await js.stream_info(info.name)
        if (after.created, after.first) != (info.created, info.first):
            # What was purged under our eyes was perhaps not seen: begin again with what is left.
            return VerifyAnswer(info.name, after.created, after.last, cursor, request.last)
        if ended:
            log.info("verified", domain=domain, run=request.run, stream=info.name, up_to=info.last)
        return look.answered(info, cursor, complete=ended)

    async def _aggregate_of(self, domain: str, cls: str) -> tuple[StreamInfo, int]:
        """Return a class's aggregate, and highest leaf sequence (no source at rest)."""
        leaf = self._fleet.leaves.get(domain)
        record = None if leaf is None else leaf.classes.get(cls)
        if record is None:
            raise UnavailableError(f"class {cls!r} of {domain!r} is not taken in yet")
        info = await self._streams.of(record.stream).stream_info(record.stream)
        state, held = observed(info, 0.0).states.get(leaf_stream(domain, cls)), 0
        if record.held is not None and record.stream_created == info.created and not record.lost:
            held = record.held.seq
        return info, max(held, 0 if state is None else state.seq)
