"""Stores messages on core subjects of the leaf's own server: the input `nats`.

Requests are answered in JSON once stored whole or refused; `Nats-Msg-Id` makes repeats safe. Other messages
are dropped and counted above `pending` waiting bytes. docs/inputs.md describes payloads, answers and
permissions.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from nats.aio.msg import Msg

from agent import contract
from agent.base.clock import wall_ns
from agent.base.logs import LogEdge
from agent.base.metrics import Metrics
from agent.base.wait import Pacer, event_within, unless
from agent.jetstream.connection import EXPECTED, OpenConnection, connected
from agent.leaf.inputs.formats import LineParser, make_parser, parse_lines
from agent.leaf.inputs.formats.message import MessageError, TopicNames, message_lines
from agent.leaf.inputs.nats import NatsOptions, SubjectTemplate, overlapping
from agent.leaf.inputs.shared import NO_SERVER, ConfiguredInput, LocalServer
from agent.leaf.inputs.shared.gatherer import Buffer, Gatherer
from agent.leaf.inputs.shared.submitter import RetryingSubmitter, letter
from agent.leaf.intake import Chunk, Intake, RefusedError, UnknownOutcomeError

if TYPE_CHECKING:
    from agent.leaf.inputs.shared.mapped import PayloadMapper
    from agent.mapping.schema import Map

_QUEUE: Final = re.compile(r"[^\s.*>\x00-\x1f\x7f]{0,64}\Z")
_LEAST_PENDING: Final = 64 * 1024
_OVERHEAD: Final = 512
"""Assumed bytes of a message beside its payload."""
_MAX_MESSAGES: Final = 65_536
_AGAIN: Final = 1.0
_SLOW: Final = "slow consumer"
_DENIED: Final = "permissions violation"
_ID: Final = "Nats-Msg-Id"


class NatsInput(ConfiguredInput[NatsOptions]):
    _intake: Intake
    _stopping: asyncio.Event
    _submitter: RetryingSubmitter
    _parser: LineParser
    _group: asyncio.TaskGroup
    _source: Gatherer

    def __init__(self, options: NatsOptions, metrics: Metrics, server: LocalServer = NO_SERVER) -> None:
        super().__init__(options, metrics, server)
        self._up = metrics.input_up.labels(options.name)
        self._connecting = LogEdge(self._log, "messages are heard again")
        self._refused = LogEdge(self._log, "the local server lets the agent subscribe again")
        self._denied = False
        self._requests: set[asyncio.Task[None]] = set()

    def _mistakes(self) -> Iterator[str]:
        options = self._options
        if not options.subjects:
            yield "there is no subject; write [[input.subjects]] with its filter"
        yield from options.map_problems(has_topic=True)
        for subject in options.subjects:
            yield from subject.problems()
            if options.mapping is not None and (subject.device or subject.metric != "{0}"):
                yield f"device or metric of {subject.filter!r:.80} stands beside a mapping; write it there"
        for filter_, other_filter in overlapping(options.subjects):
            yield f"filters {filter_!r:.80} and {other_filter!r:.80} overlap; make them distinct"
        if not _QUEUE.match(options.queue):
            yield f"queue {options.queue!r:.80} is not a name of a queue group; leave out dots and blanks"
        if options.pending < _LEAST_PENDING:
            yield f"pending is {options.pending} bytes; take 64KiB at least"

    async def run(self, intake: Intake, stopping: asyncio.Event) -> None:
        """Receive until `stopping`, then store and answer the received messages."""
        options = self._options
        self._intake, self._stopping = intake, stopping
        self._dropped = self._metrics.dropped.labels(options.name)
        self._submitter = RetryingSubmitter(options, self._metrics, intake, stopping, self._log)
        self._parser = make_parser("ndjson", intake.domain, precision="ns", device_tag="")
        async with asyncio.TaskGroup() as self._group:
            buffer = Buffer(options.pending, self._group, share=options.pending)
            self._source = Gatherer(buffer, self._parser, self._submitter, _nothing, _nothing, _nothing)
            buffer.join(self._source)
            while not stopping.is_set():
                try:
                    await self._hear()
                except EXPECTED as error:
                    self._up.set(0)
                    self._connecting.begin(f"nothing is heard of the local server: {error}")
                await event_within(stopping, _AGAIN)
            self._source.flush()
        self._submitter.end()

    async def _hear(self) -> None:
        server = self._server
        async with connected(server.url, server.seed_file, self._intake.domain, self._problem) as link:
            self._denied = False
            for subject in self._options.subjects:
                await self._subscribe(link, subject)
            await link.nc.flush()
            if not self._denied:
                self._up.set(1)
                self._refused.end()
            self._connecting.end()
            await unless(self._stopping, link.ended())
            self._up.set(0)
            for subscription in list(link.nc._subs.values()):
                await subscription.unsubscribe()
            while self._requests and not link.nc.is_closed:
                await asyncio.wait(self._requests)

    async def _subscribe(self, link: OpenConnection, subject: SubjectTemplate) -> None:
        mapper = self._mapper(subject.mapping or self._options.mapping)

        async def take(message: Msg) -> None:
            await self._take(message, subject, mapper)

        await link.nc.subscribe(
            subject.filter,
            queue=self._options.queue,
            cb=take,
            pending_msgs_limit=_MAX_MESSAGES,
            pending_bytes_limit=self._options.pending,
        )

    def _problem(self, text: str) -> None:
        """Log a client library's connection error."""
        if _SLOW in text:
            self._dropped.inc()
        elif _DENIED in text:
            self._denied = True
            self._up.set(0)
            self._refused.begin(
                f"the local server says: {text}; let the agent's user subscribe to the filters, with "
                "allow_responses"
            )

    def _mapper(self, given: Map | None) -> PayloadMapper | None:
        if given is None:
            return None
        from agent.leaf.inputs.shared.mapped import PayloadMapper  # not held in memory without mappings

        return PayloadMapper(given, self._intake.domain, ".")

    async def _take(self, message: Msg, subject: SubjectTemplate, mapper: PayloadMapper | None) -> None:
        if self._source.room <= 0:
            self._dropped.inc()
            if message.reply:
                self._start(self._answer(message, _refusal("more waits than can be stored", 1.0)))
            return
        names = subject.place(message.subject)
        if message.reply:
            self._start(self._settle(message, names, mapper))
            return
        if mapper is not None:
            self._take_mapped(message, mapper)
            return
        try:
            lines = await _lines(message.data, names, whole=False)
        except MessageError as error:
            dead = letter(message.data, message.subject, str(error))
            self._source.dead_letter("bad_message", [dead])
            return
        self._source.add(lines, message.subject)

    def _take_mapped(self, message: Msg, mapper: PayloadMapper) -> None:
        found = mapper.take(message.data, message.subject, wall_ns())
        self._submitter.miss(found.no_value)
        if found.letter is not None:
            self._source.dead_letter("bad_message", [found.letter])
        if found.count:
            self._source.add(found.payload, message.subject)

    def _start(self, work: Any) -> None:
        task = self._group.create_task(work)
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)

    async def _settle(self, message: Msg, names: TopicNames, mapper: PayloadMapper | None) -> None:
        size = len(message.data) + _OVERHEAD
        self._source.hold(size)
        try:
            answer = await self._store(message, names, mapper)
        finally:
            self._source.hold(-size)
        await self._answer(message, answer)

    async def _store(self, message: Msg, names: TopicNames, mapper: PayloadMapper | None) -> dict[str, Any]:
        try:
            request = self._request(message)
            if mapper is not None:
                return await self._store_mapped(message, request, mapper)
            lines = await _lines(message.data, names)
            parsed = await parse_lines(self._parser, lines, wall_ns())
            if parsed.bad:
                raise MessageError(parsed.bad[0][1])
            if not parsed.count:
                raise MessageError("there is no reading in it")
            chunk = Chunk(parsed.payload, parsed.count, request)
            await self._intake.submit(self._options.name, self._options.class_, chunk)
        except (MessageError, contract.ContractError) as error:
            self._submitter.skip("bad_message", message.subject, str(error))
            return _refusal(str(error))
        except RefusedError as refusal:
            return _refusal(str(refusal), refusal.retry_after)
        except UnknownOutcomeError as error:
            return {"unknown": str(error)}
        return {"stored": parsed.count}

    async def _store_mapped(
        self, message: Msg, request: contract.Request | None, mapper: PayloadMapper
    ) -> dict[str, Any]:
        """Store the readings of a payload; odd members are answered and become a dead letter. Raises
        `MessageError` where nothing is usable.
        """
        found = mapper.take(message.data, message.subject, wall_ns())
        if found.letter is not None and not found.count and not found.no_value:
            raise MessageError(found.letter.reason)
        self._submitter.miss(found.no_value)
        answer: dict[str, Any] = {"stored": found.count}
        if found.count:
            chunk = Chunk(found.payload, found.count, request)
            await self._intake.submit(self._options.name, self._options.class_, chunk)
        if found.letter is not None:
            await self._submitter.dead_letter("bad_message", [found.letter])
            answer["odd"] = found.letter.reason
        return answer

    def _request(self, message: Msg) -> contract.Request | None:
        key = (message.headers or {}).get(_ID)
        if key is None:
            return None
        # The subject says whose reading it is, so each subject has ids of its own.
        scope = contract.request_scope(self._options.name, message.subject)
        return contract.make_request(contract.check_request_key(key), scope, message.data)

    async def _answer(self, message: Msg, answer: dict[str, Any]) -> None:
        try:
            await message.respond(json.dumps(answer).encode())
        except EXPECTED as error:
            self._connecting.begin(f"a request cannot be answered: {error}")


def lines_of(payload: bytes, names: TopicNames, *, whole: bool = True) -> Iterator[bytes]:
    """Yield reading lines of a payload in groups. Raises `MessageError`; unless `whole`, bad rows become
    invalid lines.
    """
    try:
        lines = message_lines(payload, names)
    except MessageError:
        rows = [row for row in payload.split(b"\n") if row.strip()]
        if len(rows) < 2:
            raise
        for row in rows:
            try:
                lines = message_lines(row, names)
            except MessageError:
                if whole:
                    raise
                lines = [row.replace(b"\r", b" ")]
            yield _ended(lines)
    else:
        yield _ended(lines)


def _ended(lines: list[bytes]) -> bytes:
    return b"".join([line + b"\n" for line in lines])


async def _lines(payload: bytes, names: TopicNames, *, whole: bool = True) -> bytes:
    pacer, parts = Pacer(), []
    for part in lines_of(payload, names, whole=whole):
        parts.append(part)
        await pacer.give_way()
    return b"".join(parts)


def _refusal(why: str, retry: float | None = None) -> dict[str, Any]:
    return {"refused": why} if retry is None else {"refused": why, "retry": retry}


def _nothing() -> None:
    """Do nothing: subjects can't be paused."""
