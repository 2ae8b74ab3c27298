"""Handles a request from head to answer, for all protocols."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any, Final, NamedTuple

import structlog

from agent import contract
from agent.base.http.framing import HttpRequest
from agent.base.http.response import Response
from agent.base.logs import Sparse
from agent.base.metrics import Metrics
from agent.leaf.inputs.http import HttpOptions
from agent.leaf.inputs.http.bodies import Bodies, Hold, unpacked
from agent.leaf.inputs.http.connection import Reply
from agent.leaf.inputs.http.request import KEY, Guard, body_key, check_method
from agent.leaf.inputs.http.responses import (
    ACCEPTED,
    STORED,
    HttpError,
    failed,
    of_outcome,
    stopped,
)
from agent.leaf.inputs.http.route import AdmittedRequest, DecodedBody, RouteSettings, read_head
from agent.leaf.inputs.http.routes import QUERY_PATH, Routes, not_found
from agent.leaf.intake import Chunk, Intake, QuickIntake

OPEN_PATHS: Final = ("/ping", "/health", "/ready")
"""Health paths of InfluxDB clients, without token."""
_PASSWORD_PATHS: Final = ("/write", QUERY_PATH)
"""Paths where InfluxDB 1 clients may send the password as `p` in the URL."""
_KNOWN: Final = 256
"""Cached heads; senders repeat theirs."""
_KNOWN_BYTES: Final = 1024


class _Exchange(NamedTuple):
    """A complete request and its reply function."""

    admitted: AdmittedRequest
    body: bytes
    hold: Hold
    reply: Reply


class Handler:
    """Handles the requests of one input. Await `finish` once `stopping` is set, then `close`."""

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
                remote_write=options.remote_write,
                remote_write_device=options.remote_write_device,
                mapping=options.mapping,
            )
        )
        self._bodies = Bodies(options.buffer)
        self._intake = intake
        self._hand_in = intake.hand_in if isinstance(intake, QuickIntake) else None
        self._metrics = metrics
        self._stopping = stopping
        self._log = structlog.get_logger("http").bind(input=options.name)
        self._http2 = Sparse()
        self._odd = Sparse()
        self._known: dict[bytes, AdmittedRequest] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._active = 0
        self._quiet = asyncio.Event()

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    async def finish(self) -> None:
        """Wait for all pending requests."""
        if self._active:
            await self._quiet.wait()

    def close(self) -> None:
        """Abandon pending requests."""
        for task in self._tasks:
            task.cancel()

    def hold(self) -> Hold:
        """Return a counter of body bytes for a connection."""
        return Hold(self._bodies)

    def known(self, head: bytes) -> AdmittedRequest | None:
        """Return the admitted request of a cached head, or None. Brings 40 % more small requests a second."""
        return None if self._stopping.is_set() else self._known.get(head)

    def admit(self, request: HttpRequest, head: bytes) -> AdmittedRequest | Response:
        """Admit a request for its body, or answer it. Raises `HttpError`."""
        path = request.path
        shown = request.query().get("p") if path in _PASSWORD_PATHS else None
        self._guard.admit(request.headers, open_path=path in OPEN_PATHS, shown=shown)
        if path in OPEN_PATHS:
            return self._greet(request)
        route = self._routes.find(path)
        if route is None:
            raise not_found(path)
        if path == QUERY_PATH and (request.method == "GET" or _is_bare(request)):
            from agent.leaf.inputs.http import influx

            return influx.answer(request.query())
        admitted = AdmittedRequest(request, read_head(request, route), route)
        if self._stopping.is_set():
            raise stopped()
        if len(head) <= _KNOWN_BYTES and admitted.head.key is None:
            if len(self._known) >= _KNOWN:
                del self._known[next(iter(self._known))]
            self._known[head] = admitted
        return admitted

    def begin(self) -> None:
        """Note that an admitted request's body arrives; `end` follows."""
        self._active += 1

    def end(self) -> None:
        """Note that an admitted request is answered or abandoned."""
        self._active -= 1
        if not self._active and self._stopping.is_set():
            self._quiet.set()

    def take(self, admitted: AdmittedRequest, body: bytes, hold: Hold, reply: Reply) -> None:
        """Process a request's body and call `reply` once, now or later. A task handles slow bodies."""
        exchange = _Exchange(admitted, body, hold, reply)
        try:
            found = self._at_once(exchange)
        except Exception as error:
            self._fail(exchange, error)
            return
        if found is not None:
            self._submit(exchange, *found)
            return
        self._start(self._decode_on(exchange))

    def refusal(self, error: HttpError, request: HttpRequest | None) -> Response:
        """Count an error and return its answer in the sender's protocol."""
        self._count_fault(error)
        if request is None:
            return error.of_attempt(keyed=False).response()
        route = self._routes.find(request.path)
        if not error.certain and (KEY in request.headers or (route is not None and route.is_repeat_by_body)):
            error = error.of_attempt(keyed=True)
        if route is not None:
            error = route.translate(error, request)
        return error.response()

    def _count_fault(self, error: HttpError) -> None:
        self._metrics.http_refusals.labels(self._name, str(error.status)).inc()
        if error.fault is not None:
            self._metrics.invalid.labels(self._name, error.fault).inc()
        if error.fault == "http2":
            self._http2.report(self._log.warning, "HTTP/2 refused", reason=error.error)

    def _greet(self, request: HttpRequest) -> Response:
        check_method(request, "GET", "GET", "HEAD")
        from agent.leaf.inputs.http import influx  # imported late to save memory, as the routes are

        return influx.greet(request, self._stopping.is_set())

    async def _decode(self, exchange: _Exchange) -> tuple[DecodedBody, Chunk | None]:
        """Return a request's readings and chunk. Raises `HttpError`."""
        _, head, route = exchange.admitted
        body = await unpacked(exchange.body, head, exchange.hold)
        decoded = await route.decode(body, head, exchange.hold)
        return decoded, self._chunk(exchange.admitted, body.data, decoded)

    def _at_once(self, exchange: _Exchange) -> tuple[DecodedBody, Chunk | None] | None:
        """Return readings and chunk of a plain small body, else None."""
        _, head, route = exchange.admitted
        decoded = None if head.encoding is not None else route.decode_at_once(exchange.body, head)
        return None if decoded is None else (decoded, self._chunk(exchange.admitted, exchange.body, decoded))

    def _chunk(self, admitted: AdmittedRequest, body: bytes, decoded: DecodedBody) -> Chunk | None:
        key = self._request_key(admitted, body, decoded)
        return Chunk(decoded.payload, decoded.count, key) if decoded.count else None

    async def _decode_on(self, exchange: _Exchange) -> None:
        try:
            decoded, chunk = await self._decode(exchange)
        except Exception as error:
            self._fail(exchange, error)
        else:
            self._submit(exchange, decoded, chunk)

    def _request_key(
        self, admitted: AdmittedRequest, body: bytes, decoded: DecodedBody
    ) -> contract.Request | None:
        head, key = admitted.head, admitted.head.key
        if key is None and admitted.route.is_repeat_by_body and decoded.is_dated:
            key = body_key(body)
        if key is None:
            return None
        # Of the body as its sender meant it: packed differently, or filled in later, it is the same.
        kind = "json" if head.is_json else ""
        return contract.make_request(key, self._scope, body, head.target, kind)

    def _submit(self, exchange: _Exchange, decoded: DecodedBody, chunk: Chunk | None) -> None:
        if chunk is None and not decoded.letters:
            self._settle(exchange, decoded, None)
        elif chunk is None or decoded.letters or not self._is_handed_in(exchange, decoded, chunk):
            self._start(self._store(exchange, decoded, chunk))

    def _is_handed_in(self, exchange: _Exchange, decoded: DecodedBody, chunk: Chunk) -> bool:
        """Submit without a task if possible."""
        if self._hand_in is None:
            return False
        try:
            return self._hand_in(self._name, self._class, chunk, partial(self._settle, exchange, decoded))
        except Exception as error:
            self._settle(exchange, decoded, error)
            return True

    async def _store(self, exchange: _Exchange, decoded: DecodedBody, chunk: Chunk | None) -> None:
        outcome: Exception | None = None
        try:
            if chunk is not None:
                await self._intake.submit(self._name, self._class, chunk)
            if decoded.letters:
                await self._intake.dead_letter(self._name, self._class, decoded.letters)
        except Exception as error:
            outcome = error
        self._settle(exchange, decoded, outcome)

    def _settle(self, exchange: _Exchange, decoded: DecodedBody, outcome: Exception | None) -> None:
        """Answer a request with known outcome; None means stored."""
        _, head, route = exchange.admitted
        if outcome is not None:
            self._fail(exchange, outcome, is_dated=decoded.is_dated)
            return
        try:
            if decoded.left_out:
                self._count_left_out(decoded, route.left_out_fault)
            if decoded.odd:
                self._metrics.invalid.labels(self._name, "bad_message").inc(decoded.odd)
                letter = decoded.letters[0]
                self._odd.report(self._log.warning, "members refused", topic=letter.at, reason=letter.reason)
            if decoded.no_value:
                self._metrics.missing_values.labels(self._name).inc(decoded.no_value)
            response = route.respond(decoded, head)
        except Exception as error:
            self._fail(exchange, error, is_dated=decoded.is_dated)
        else:
            exchange.reply(response, False)

    def _fail(self, exchange: _Exchange, error: Exception, *, is_dated: bool = True) -> None:
        _, head, route = exchange.admitted
        keyed = head.key is not None or (route.is_repeat_by_body and is_dated)
        answer = of_outcome(error, keyed)
        if answer is None:
            self._log.error("request failed", exc_info=error)
            answer = failed()
        exchange.reply(self.refusal(answer, exchange.admitted.request), answer.unread)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _count_left_out(self, decoded: DecodedBody, fault: str | None) -> None:
        for kind, count in decoded.left_out.items():
            self._metrics.left_out.labels(self._name, kind).inc(count)
        if fault is not None:
            self._metrics.invalid.labels(self._name, fault).inc(sum(decoded.left_out.values()))


def _is_bare(request: HttpRequest) -> bool:
    return request.length in (None, 0) and not request.chunked
