"""One request from its head to its answer: what all protocols have in common."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

import structlog
from aiohttp.web import BaseRequest, Response, StreamResponse

from agent import contract
from agent.base.log_edges import Sparse
from agent.base.metrics import Metrics
from agent.leaf.inputs.http.bodies import Bodies, Hold
from agent.leaf.inputs.http.listener import HttpConnection
from agent.leaf.inputs.http.options import HttpOptions
from agent.leaf.inputs.http.request import (
    READINGS_PATH,
    Guard,
    RequestHead,
    check_method,
    read_head,
)
from agent.leaf.inputs.http.responses import (
    ACCEPTED,
    STORED,
    HttpError,
    Success,
    at_fault,
    not_at_hub,
    refused,
    stopped,
    unknown_outcome,
)
from agent.leaf.inputs.http.routes import OTLP_PATH, DecodedBody, Route, Routes, RouteSettings
from agent.leaf.intake import Chunk, Intake, NotAtHubError, RefusedError, UnknownOutcomeError

OPEN_PATHS: Final = ("/ping", "/health")
"""What InfluxDB's clients ask to find out whether a server answers; needs no token."""


class Handler:
    """Answers the requests of one input. `finish` is awaited once `stopping` is set."""

    def __init__(
        self, options: HttpOptions, guard: Guard, intake: Intake, metrics: Metrics, stopping: asyncio.Event
    ) -> None:
        self._name = options.name
        self._class = options.class_
        self._scope = contract.request_scope(options.name)
        self._guard = guard
        self._routes = Routes(
            RouteSettings(
                domain=intake.domain,
                body=options.body,
                device_tag=options.device_tag,
                otlp=options.otlp,
                success=ACCEPTED if options.ack == "accepted" else STORED,
            )
        )
        self._bodies = Bodies(options.buffer, stopping)
        self._intake = intake
        self._metrics = metrics
        self._stopping = stopping
        self._log = structlog.get_logger("http").bind(input=options.name)
        self._http2 = Sparse()
        self._active = 0
        self._quiet = asyncio.Event()

    async def finish(self) -> None:
        """Wait until every request under way is answered."""
        if self._active:
            await self._quiet.wait()

    def count_fault(self, error: HttpError) -> None:
        """Count an answer that is no success, and what in the request breaks the contract."""
        self._metrics.http_refusals.labels(self._name, str(error.status)).inc()
        if error.fault is not None:
            self._metrics.invalid.labels(self._name, error.fault).inc()
        if error.fault == "http2" and (held := self._http2.held_back(time.monotonic())) is not None:
            self._log.warning("HTTP/2 refused", reason=error.error, not_reported_before=held)

    async def answer(self, request: BaseRequest) -> StreamResponse:
        """Store the readings of a request and say so, or say why not."""
        connection = request.protocol
        assert isinstance(connection, HttpConnection)
        connection.began(request.content)
        self._active += 1
        hold = Hold(self._bodies)
        route = None
        try:
            route = self._routes.find(request.path)
            response = await self._serve(request, route, hold)
        except HttpError as error:
            self.count_fault(error)
            if not error.certain and "Idempotency-Key" in request.headers:
                error = error.of_attempt(keyed=True)
            if route is not None:
                error = route.translate(error, request)
            response = error.response()
        finally:
            hold.release()
            connection.ended()
            self._active -= 1
            if not self._active and self._stopping.is_set():
                self._quiet.set()
        if isinstance(response, Success):
            if request.keep_alive and not self._stopping.is_set():
                return response
            response = response.general()
        if self._stopping.is_set():
            response.force_close()
        return response

    async def _serve(self, request: BaseRequest, route: Route[Any] | None, hold: Hold) -> Response | Success:
        """Raises `HttpError`."""
        path = request.path
        self._guard.admit(request.headers, open_path=path in OPEN_PATHS)
        if path in OPEN_PATHS:
            return self._greet(request)
        if route is None:
            raise _not_found(path)
        head = read_head(request, route)
        if self._stopping.is_set():
            raise stopped()
        body = await self._bodies.receive(request, head, hold, route.room)
        key = self._request_key(head, body.data)
        decoded = await route.decode(body, head, hold)
        if decoded.count:
            await self._store(Chunk(decoded.payload, decoded.count, key))
        if decoded.left_out:
            self._count_left_out(decoded, route)
        return route.respond(decoded, head)

    def _greet(self, request: BaseRequest) -> Response:
        check_method(request, "GET", "GET", "HEAD")
        from agent.leaf.inputs.http import influx  # imported late to save memory, as the routes are

        return influx.greet(request, self._stopping.is_set())

    def _request_key(self, head: RequestHead, body: bytes) -> contract.Request | None:
        if head.key is None:
            return None
        # Of the body as its sender meant it: packed differently, or filled in later, it is the same.
        kind = "json" if head.is_json else ""
        return contract.make_request(head.key, self._scope, body, head.target, kind)

    async def _store(self, chunk: Chunk) -> None:
        """Submit the readings; raises `HttpError` when they are not stored."""
        try:
            await self._intake.submit(self._name, self._class, chunk)
        except RefusedError as error:
            raise refused(error, certain=True) from None
        except NotAtHubError as error:
            raise not_at_hub(error, keyed=chunk.request is not None) from None
        except UnknownOutcomeError:
            raise unknown_outcome(keyed=chunk.request is not None) from None

    def _count_left_out(self, decoded: DecodedBody, route: Route[Any]) -> None:
        for kind, count in decoded.left_out.items():
            self._metrics.left_out.labels(self._name, kind).inc(count)
        if route.left_out_fault is not None:
            total = sum(decoded.left_out.values())
            self._metrics.invalid.labels(self._name, route.left_out_fault).inc(total)


def _not_found(path: str) -> HttpError:
    if path == OTLP_PATH:
        return at_fault(404, "path", "OTLP is not taken here (option otlp)")
    return at_fault(404, "path", f"there is nothing at this path: readings go to POST {READINGS_PATH}")
