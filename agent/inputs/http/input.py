"""The input `http`: programs POST readings and are answered once these are stored. It keeps nothing: what is
not answered with 204 is still its sender's.

`POST /v1/readings`, `Content-Type: application/x-ndjson` (a reading a line) or `application/json` (an array
of at most 1 MiB, or one reading); `Content-Encoding: gzip` or `zstd`; `Idempotency-Key` makes a repeat safe.

204 stored; 400 lines that are no readings, each named; 403 `Origin`; 404, 405; 408 too slow; 411, 413 length;
415 type or encoding; 421 `Host`; 422 key used for another body; 429 the stream is full; 503 server away, busy
or stopping. With all but 204 nothing of the request is stored, save one: 504 says that nobody knows yet, and
that a repeat under the same `Idempotency-Key` finds out. 429 and 503 carry `Retry-After`.

Options (`[[input]]` with `type = "http"`):
- `name` ("http"): names the input in batch subjects and metrics.
- `class` ("normal"): the class of its readings.
- `listen` ("127.0.0.1:8080"): address and port.
- `body` ("16MiB"): the largest body, as it comes and unpacked.
- `max_connections` (128): connections beyond are answered 503 and closed.
- `buffer` ("64MiB"): bytes of bodies under way, over all requests; 503 beyond.
- `timeout` ("30s"): for the header of a request, and again for its body.
- `allowed_hosts` ([]): names in `Host` besides the loopback's and the listen address. A page in a browser on
  this machine must not reach the input under a name of its own (DNS rebinding).
- `allowed_origins` ([]): values of `Origin` that may post; every other page in a browser is refused.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from typing import Annotated, Final

from aiohttp.web import BaseRequest, Response, StreamResponse
from msgspec import Meta, Struct, field

from agent import contract
from agent.config import Seconds, Size, listen_address
from agent.decoder import BadLinesError, decode_array, decode_ndjson
from agent.inputs.http.answers import SERVER, Answer, at_fault, bad_lines, refused, unknown_outcome
from agent.inputs.http.asked import Asked, read_header
from agent.inputs.http.bodies import Bodies, Hold
from agent.inputs.http.guard import Guard
from agent.inputs.http.listener import Connection, Listener, taken
from agent.intake import Chunk, Intake, Reason, RefusedError, UnknownOutcomeError
from agent.metrics import Metrics

_GRACE: Final = 1.0
"""Seconds that a body which is still coming has left once the agent stops."""


class HttpOptions(Struct, tag_field="type", tag="http", forbid_unknown_fields=True, kw_only=True):
    """The options of one `http` input; the module says what each means."""

    name: str = "http"
    class_: str = field(name="class", default=contract.DEFAULT_CLASS)
    listen: str = "127.0.0.1:8080"
    body: Size = Size(contract.MAX_BODY_BYTES)
    max_connections: Annotated[int, Meta(ge=1)] = 128
    buffer: Size = Size(64 * 2**20)
    timeout: Seconds = Seconds(30.0)
    allowed_hosts: list[str] = []
    allowed_origins: list[str] = []


class HttpInput:
    """One `http` input."""

    def __init__(self, options: HttpOptions, metrics: Metrics) -> None:
        self._options = options
        self._metrics = metrics
        self._accepted = metrics.accepted.labels(options.name, options.class_)
        self._guard = Guard(listen_address(options.listen)[0], options.allowed_hosts, options.allowed_origins)
        self._bodies = Bodies(options.buffer, options.timeout)
        self._active = 0
        self._stopping = False
        self._quiet = asyncio.Event()

    @property
    def name(self) -> str:
        """The name in the configuration and in the batch subject."""
        return self._options.name

    def check(self) -> list[str]:
        """What stands in the way of listening, one sentence a problem."""
        return [f"input {self.name!r}: {problem}" for problem in taken(self._options.listen)]

    async def run(self, intake: Intake, stopping: asyncio.Event) -> None:
        """Serve until `stopping` is set, then answer what is under way. Raises `ConfigError` when the address
        cannot be listened on."""

        async def handle(request: BaseRequest) -> StreamResponse:
            return await self._answer(request, intake)

        listener = Listener(
            self._options.listen,
            handle,
            max_connections=self._options.max_connections,
            header_timeout=self._options.timeout,
            on_fault=self._count_fault,
        )
        await listener.open()
        try:
            await stopping.wait()
            self._stopping = True
            listener.close_door()
            self._bodies.stop(_GRACE)
            if self._active:
                await self._quiet.wait()
        finally:
            await listener.close()

    async def _answer(self, request: BaseRequest, intake: Intake) -> StreamResponse:
        connection = request.protocol
        if isinstance(connection, Connection):
            connection.began()
        self._active += 1
        try:
            response = await self._outcome(request, intake)
        finally:
            self._active -= 1
            if isinstance(connection, Connection):
                connection.ended()
            if self._stopping and not self._active:
                self._quiet.set()
        if self._stopping:
            response.force_close()
        return response

    async def _outcome(self, request: BaseRequest, intake: Intake) -> Response:
        hold = Hold(self._bodies)
        try:
            asked = read_header(request, self._guard, self._options.body)
            if self._stopping:
                raise refused(RefusedError(Reason.STOPPING, "the agent is stopping"), unread=True)
            chunk = self._chunk(await self._bodies.receive(request, asked, hold), asked, intake.domain)
            await self._store(chunk, intake)
        except Answer as answer:
            self._count_fault(answer)
            return answer.response()
        finally:
            hold.release()
        return Response(status=204, headers=SERVER)

    async def _store(self, chunk: Chunk, intake: Intake) -> None:
        """Hand the readings to the core; raises `Answer` when they are not stored."""
        try:
            await intake.submit(self.name, self._options.class_, chunk)
        except RefusedError as error:
            self._metrics.refused.labels(self.name, self._options.class_, error.reason).inc(chunk.count)
            raise refused(error) from None
        except UnknownOutcomeError:
            self._accepted.inc(chunk.count)
            raise unknown_outcome(keyed=chunk.request is not None) from None
        self._accepted.inc(chunk.count)

    def _chunk(self, body: bytes, asked: Asked, domain: str) -> Chunk:
        decode = decode_array if asked.array else decode_ndjson
        try:
            decoded = decode(body, domain, time.time_ns())
        except BadLinesError as error:
            raise bad_lines(error) from None
        if not decoded.count:
            raise at_fault(400, "empty", "the body holds no reading", unread=False)
        # The CRC is of the body as its sender meant it: packed again, or filled in later, it is the same.
        request = None if asked.key is None else contract.Request(asked.key, zlib.crc32(body))
        return Chunk(decoded.payload, decoded.count, request)

    def _count_fault(self, answer: Answer) -> None:
        if answer.fault is not None:
            self._metrics.invalid.labels(self.name, answer.fault).inc()
