"""One request from its header to its answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

import structlog
from aiohttp.web import BaseRequest, Response, StreamResponse

from agent import contract
from agent.base.clock import wall_ns
from agent.base.log_edges import Sparse
from agent.base.metrics import Metrics
from agent.base.wait import Pacer
from agent.config import Size
from agent.leaf.inputs.formats.ndjson import (
    BadLinesError,
    BodyTooLargeError,
    Decoded,
    decode_array_slices,
    decode_slices,
    join_decoded,
)
from agent.leaf.inputs.http.bodies import Bodies, Hold, dense
from agent.leaf.inputs.http.listener import HttpConnection
from agent.leaf.inputs.http.request import Guard, RequestHead, ResourceKind, kind_of, read_header
from agent.leaf.inputs.http.responses import (
    ACCEPTED,
    STORED,
    HttpError,
    Success,
    at_fault,
    bad_lines,
    not_at_hub,
    refused,
    stopped,
    unknown_outcome,
)
from agent.leaf.intake import Chunk, Intake, Level, NotAtHubError, RefusedError, UnknownOutcomeError

if TYPE_CHECKING:
    from agent.leaf.inputs.formats.line_protocol import LineProtocol
    from agent.leaf.inputs.http.otlp.source import Sources


class Handler:
    """Answers the requests of one input named `name` for class `cls`; bodies of at most `body` bytes each and
    `buffer` in all. `ack` is what success means, `device_tag` names the tag of line protocol that is the
    device, `otlp` says whether that is taken."""

    def __init__(
        self,
        name: str,
        cls: str,
        guard: Guard,
        *,
        body: Size,
        buffer: Size,
        device_tag: str,
        otlp: bool,
        ack: Level,
        intake: Intake,
        metrics: Metrics,
        stopping: asyncio.Event,
    ) -> None:
        self._name = name
        self._class = cls
        self._scope = contract.request_scope(name)
        self._guard = guard
        self._body = body
        self._device_tag = device_tag
        self._otlp = otlp
        self._lines: LineProtocol | None = None
        self._sources: Sources | None = None
        self._bodies = Bodies(buffer, stopping)
        self._intake = intake
        self._metrics = metrics
        self._stopping = stopping
        self._log = structlog.get_logger("http").bind(input=name)
        self._http2 = Sparse()
        self._active = 0
        self._quiet = asyncio.Event()
        self._stored: Final = ACCEPTED if ack == "accepted" else STORED

    async def finish(self) -> None:
        """Wait until all that is under way is answered; `stopping` is set."""
        if self._active:
            await self._quiet.wait()

    def count_fault(self, answer: HttpError) -> None:
        """Count an answer that is no success, and what in the request breaks the contract."""
        self._metrics.http_refusals.labels(self._name, str(answer.status)).inc()
        if answer.fault is not None:
            self._metrics.invalid.labels(self._name, answer.fault).inc()
        if answer.fault == "http2" and (held := self._http2.held_back(time.monotonic())) is not None:
            self._log.warning("HTTP/2 refused", reason=answer.error, not_reported_before=held)

    async def answer(self, request: BaseRequest) -> StreamResponse:
        """Store the readings of a request and say so, or say why not."""
        connection = request.protocol
        assert isinstance(connection, HttpConnection)
        connection.began(request.content)
        self._active += 1
        hold = Hold(self._bodies)
        try:
            response = await self._take(request, hold)
        except HttpError as answer:
            self.count_fault(answer)
            if not answer.certain and "Idempotency-Key" in request.headers:
                answer = answer.of_attempt(keyed=True)
            return self._closing(self._in_its_words(answer, request).response())
        finally:
            hold.release()
            connection.ended()
            self._active -= 1
            if not self._active and self._stopping.is_set():
                self._quiet.set()
        if not isinstance(response, Success):
            return self._closing(response)
        if request.keep_alive and not self._stopping.is_set():
            return response
        return self._closing(response.general())

    def _count_left_out(self, kinds: Mapping[str, int]) -> None:
        for kind, count in kinds.items():
            self._metrics.left_out.labels(self._name, kind).inc(count)

    def _closing(self, response: Response) -> Response:
        if self._stopping.is_set():
            response.force_close()
        return response

    async def _take(self, request: BaseRequest, hold: Hold) -> Response | Success:
        """Store what a request holds, or answer what it asks."""
        asked = read_header(request, self._guard, self._body, otlp=self._otlp)
        if asked is None:
            from agent.leaf.inputs.http import influx

            return influx.greet(request, self._stopping.is_set())
        if self._stopping.is_set():
            raise stopped()
        if asked.kind is ResourceKind.METRICS:
            return await self._store_metrics(request, asked, hold)
        if asked.kind is ResourceKind.LINES:
            await self._store_lines(request, asked, hold)
            return STORED  # its clients know no 202
        await self._store(await self._chunk(request, asked, hold))
        return self._stored

    async def _store_lines(self, request: BaseRequest, asked: RequestHead, hold: Hold) -> None:
        # Imported here, so that an agent to which nobody speaks line protocol does not hold it in memory.
        from agent.leaf.inputs.formats.line_protocol import LineProtocol
        from agent.leaf.inputs.http import influx

        if self._lines is None:
            self._lines = LineProtocol(self._intake.domain, self._device_tag)
        unit = influx.unit_of(request)
        body = await self._bodies.receive(request, asked, hold, self._body)
        keyed = self._request(asked, body.data)
        parsing = await influx.parse(self._lines, body, unit, wall_ns(), hold)
        await self._store(Chunk(parsing.payload, parsing.count, keyed))
        if parsing.bad:
            self._count_left_out(parsing.left_out)
            raise influx.refused_lines(parsing)

    async def _store_metrics(self, request: BaseRequest, asked: RequestHead, hold: Hold) -> Response:
        from agent.leaf.inputs.http.otlp import route
        from agent.leaf.inputs.http.otlp.source import Sources

        body = await self._bodies.receive(request, asked, hold, self._body)
        keyed = self._request(asked, body.data)
        if self._sources is None:
            self._sources = Sources(self._intake.domain)
        taken = await route.parse(body, asked, self._sources, wall_ns(), hold)
        if taken.count:
            await self._store(Chunk(taken.payload, taken.count, keyed))
        if taken.rejected:
            self._metrics.invalid.labels(self._name, "rejected_points").inc(taken.rejected)
            self._count_left_out(taken.left_out)
        return route.response(taken, asked)

    def _in_its_words(self, answer: HttpError, request: BaseRequest) -> HttpError:
        kind = kind_of(request)
        if kind is ResourceKind.LINES:
            from agent.leaf.inputs.http import influx

            return influx.translated(answer, request.path)
        if kind is ResourceKind.METRICS and self._otlp:
            from agent.leaf.inputs.http.otlp import route

            return route.translated(answer, request)
        return answer

    async def _chunk(self, request: BaseRequest, asked: RequestHead, hold: Hold) -> Chunk:
        body = await self._bodies.receive(request, asked, hold, max(self._body, contract.MAX_UNPACKED_BYTES))
        keyed = self._request(asked, body.data)
        try:
            if asked.is_json:
                parts = decode_array_slices(body.data, self._intake.domain, wall_ns())
            else:
                parts = decode_slices(body.data, self._intake.domain, wall_ns(), body.room)
            decoded = await _joined(parts)
        except BadLinesError as error:
            raise bad_lines(error) from None
        except BodyTooLargeError:
            raise dense("its readings have") from None
        if not decoded.count:
            raise at_fault(400, "empty", "the body holds no reading", unread=False)
        return Chunk(decoded.payload, decoded.count, keyed)

    async def _store(self, chunk: Chunk) -> None:
        """Hand the readings to the core; raises `HttpError` when they are not stored."""
        try:
            await self._intake.submit(self._name, self._class, chunk)
        except RefusedError as error:
            raise refused(error, certain=True) from None
        except NotAtHubError as error:
            raise not_at_hub(error, keyed=chunk.request is not None) from None
        except UnknownOutcomeError:
            raise unknown_outcome(keyed=chunk.request is not None) from None

    def _request(self, asked: RequestHead, body: bytes) -> contract.Request | None:
        if asked.key is None:
            return None
        # Of the body as its sender meant it: packed again, or filled in later, it is the same.
        kind = "json" if asked.is_json else ""
        return contract.make_request(asked.key, self._scope, body, asked.target, kind)


async def _joined(parts: Iterator[Decoded]) -> Decoded:
    """All readings of a body, with a breath now and then for whatever else the agent does."""
    found: list[Decoded] = []
    pacer = Pacer()
    for part in parts:
        if part.count:
            found.append(part)
        await pacer.give_way()
    return join_decoded(found)
