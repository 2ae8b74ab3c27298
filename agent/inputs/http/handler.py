"""One request from its header to its answer."""

from __future__ import annotations

import asyncio
import time
import zlib
from typing import Final

from aiohttp.web import BaseRequest, Response, StreamResponse

from agent import contract
from agent.config import Size
from agent.decoder import BadLinesError, decode_array, decode_ndjson
from agent.inputs.http.answers import (
    SERVER,
    Answer,
    Stored,
    at_fault,
    bad_lines,
    refused,
    stopped,
    unknown_outcome,
)
from agent.inputs.http.asked import Asked, read_header
from agent.inputs.http.bodies import Bodies, Hold
from agent.inputs.http.guard import Guard
from agent.inputs.http.listener import Connection
from agent.intake import Chunk, Intake, RefusedError, UnknownOutcomeError
from agent.metrics import Metrics


class Handler:
    """Answers the requests of one input named `name` for class `cls`; bodies of at most `body` bytes each and
    `buffer` in all."""

    def __init__(
        self,
        name: str,
        cls: str,
        guard: Guard,
        *,
        body: Size,
        buffer: Size,
        intake: Intake,
        metrics: Metrics,
        stopping: asyncio.Event,
    ) -> None:
        self._name = name
        self._class = cls
        self._guard = guard
        self._body = body
        self._bodies = Bodies(buffer, stopping)
        self._intake = intake
        self._metrics = metrics
        self._stopping = stopping
        self._active = 0
        self._quiet = asyncio.Event()
        self._stored: Final = Stored()

    async def finish(self) -> None:
        """Wait until all that is under way is answered; `stopping` is set."""
        if self._active:
            await self._quiet.wait()

    def count_fault(self, answer: Answer) -> None:
        """Count a request that breaks the contract."""
        if answer.fault is not None:
            self._metrics.invalid.labels(self._name, answer.fault).inc()

    async def answer(self, request: BaseRequest) -> StreamResponse:
        """Store the readings of a request and say so, or say why not."""
        connection = request.protocol
        assert isinstance(connection, Connection)
        connection.began(request.content)
        self._active += 1
        hold = Hold(self._bodies)
        try:
            await self._store(await self._receive(request, hold))
        except Answer as answer:
            self.count_fault(answer)
            return self._closing(answer.response())
        finally:
            hold.release()
            connection.ended()
            self._active -= 1
            if not self._active and self._stopping.is_set():
                self._quiet.set()
        if request.keep_alive and not self._stopping.is_set():
            return self._stored
        return self._closing(Response(status=204, headers=SERVER))

    def _closing(self, response: Response) -> Response:
        if self._stopping.is_set():
            response.force_close()
        return response

    async def _receive(self, request: BaseRequest, hold: Hold) -> Chunk:
        asked = read_header(request, self._guard, self._body)
        if self._stopping.is_set():
            raise stopped()
        return self._chunk(await self._bodies.receive(request, asked, hold), asked)

    def _chunk(self, body: bytes, asked: Asked) -> Chunk:
        decode = decode_array if asked.array else decode_ndjson
        try:
            decoded = decode(body, self._intake.domain, time.time_ns())
        except BadLinesError as error:
            raise bad_lines(error) from None
        if not decoded.count:
            raise at_fault(400, "empty", "the body holds no reading", unread=False)
        # The CRC is of the body as its sender meant it: packed again, or filled in later, it is the same.
        request = None if asked.key is None else contract.Request(asked.key, zlib.crc32(body))
        return Chunk(decoded.payload, decoded.count, request)

    async def _store(self, chunk: Chunk) -> None:
        """Hand the readings to the core; raises `Answer` when they are not stored."""
        try:
            await self._intake.submit(self._name, self._class, chunk)
        except RefusedError as error:
            raise refused(error) from None
        except UnknownOutcomeError:
            raise unknown_outcome(keyed=chunk.request is not None) from None
