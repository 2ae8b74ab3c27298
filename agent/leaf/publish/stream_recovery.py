"""Recovers the past from a leaf's streams: the last run's end, unacknowledged batches, requests and
positions. Read-only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import structlog
from nats.aio.client import Client

from agent import contract
from agent.base.clock import ClockReader, Instant
from agent.base.wait import loop_time
from agent.contract import (
    H_CLOCK,
    H_MESSAGE_ID,
    H_POSITION,
    H_REQUESTS,
    H_RESENT,
    H_SEALED_AT,
    ContractError,
    Request,
)
from agent.jetstream import (
    STREAM_NOT_FOUND,
    JetStream,
    JetStreamError,
    RawMessage,
    UnavailableError,
    unless_refused,
)
from agent.jetstream.readers import StoredHeaders, read_headers
from agent.leaf.publish.idempotency import KNOWN_SECONDS, Ages, RequestLog
from agent.leaf.publish.pull_progress import Progress, newest, parse_progress
from agent.leaf.state import PullPosition
from agent.leaf.state_file import StateFile

_SPAN = 1024
"""Messages at a stream's end that are read first."""
_AGAIN_SECONDS = 1.0
_HELD_SECONDS = 120.0
"""Longest time from seal to storage, within the duplicate window."""

log = structlog.get_logger("leaf")


class StreamRecovery:
    """The past of a domain's streams over one connection. All methods raise `ApiError`
    or `UnavailableError`.
    """

    def __init__(self, nc: Client, js: JetStream, domain: str) -> None:
        self._nc, self._js, self._domain = nc, js, domain

    async def batches_above(self, cls: str, seq: int) -> list[StoredHeaders]:
        """Return batches and dead letters above a sequence, in order."""
        messages: list[StoredHeaders] = []
        start = {"deliver_policy": "by_start_sequence", "opt_start_seq": seq + 1}
        await self._read(cls, start, messages.append)
        return messages

    async def ids_above(self, cls: str, seq: int) -> dict[tuple[str, str], int]:
        """Return subjects and ids of batches above a sequence, with sequences."""
        messages = await self.batches_above(cls, seq)
        return {
            (message.subject, message.headers[H_MESSAGE_ID]): message.seq
            for message in messages
            if H_MESSAGE_ID in message.headers
        }

    async def message(self, cls: str, seq: int) -> RawMessage | None:
        """Return the message at a sequence, or None."""
        return await self._js.get_message(contract.leaf_stream(self._domain, cls), seq=seq)

    async def requests(self, cls: str, request_log: RequestLog) -> None:
        """Load requests of the last ten minutes of running time; the wall clock may have been set."""
        now, monotonic = ClockReader().look(), loop_time()
        stored: list[tuple[tuple[Request, ...], Instant, float]] = []

        def take(message: StoredHeaders) -> None:
            try:
                headers = message.headers
                requests = contract.parse_requests(headers.get(H_REQUESTS, ""))
                if requests:
                    stored.append((requests, _sealed(message), message.time))
            except ContractError as error:
                log.warning("idempotency keys of batch unreadable", seq=message.seq, error=str(error))

        start = {"deliver_policy": "by_start_sequence", "opt_start_seq": await self._recent(cls, now)}
        await self._read(cls, start, take)
        ages = Ages(now)
        aged = [
            (requests, ages.of(sealed) - _held(sealed, time)) for requests, sealed, time in reversed(stored)
        ]
        for requests, age in reversed(aged):
            for request in requests if age < KNOWN_SECONDS else ():
                request_log.store(cls, request, monotonic - max(0.0, age))

    async def _recent(self, cls: str, now: Instant) -> int:
        """Return a sequence before which no request is still known."""
        info = await self._js.stream_info(contract.leaf_stream(self._domain, cls))
        span = _SPAN
        while (begin := info.last + 1 - span) > info.first:
            first = await self._first_sent(cls, begin)
            with contextlib.suppress(ContractError):
                if first and Ages(now).of(_sealed(first)) >= KNOWN_SECONDS + _HELD_SECONDS:
                    return begin
            span *= 4
        return max(info.first, 1)

    async def _first_sent(self, cls: str, seq: int) -> StoredHeaders | None:
        """Return the first batch from a sequence that was not republished, since such are older."""
        sent: list[StoredHeaders] = []

        def take(message: StoredHeaders) -> None:
            if H_RESENT not in message.headers:
                sent.append(message)

        start = {"deliver_policy": "by_start_sequence", "opt_start_seq": seq}
        await self._read(cls, start, take, partial(bool, sent))
        return sent[0] if sent else None

    async def has_stream(self, cls: str) -> bool:
        """Tell whether a removed class has a stream. Raises `UnavailableError` also without permission."""
        with unless_refused(STREAM_NOT_FOUND):
            await self.message(cls, 1)
            return True
        return False

    async def newest_reading(self, cls: str) -> int | None:
        """Return a removed class's newest sequence with readings, 0 if none, None without stream."""
        with unless_refused(STREAM_NOT_FOUND):
            message = await self._js.get_message(
                contract.leaf_stream(self._domain, cls),
                last_by_subject=contract.reading_subjects(self._domain, cls),
            )
            return 0 if message is None else message.seq
        return None

    async def progress(
        self, input_name: str, classes: Iterable[str], remembered: Mapping[str, PullPosition]
    ) -> Progress | None:
        """Return a pull input's progress by streams and state file. Raises `ContractError` for unreadable
        data.
        """
        texts = [position.text for position in remembered.values()]
        for cls in classes:
            seq = remembered[cls].seq if cls in remembered else 0
            for subject in (contract.batch_subject, contract.dead_subject):
                text = await self._position(cls, subject(self._domain, cls, input_name), seq)
                texts += [] if text is None else [text]
        return newest(map(parse_progress, texts))

    async def _position(self, cls: str, subject: str, seq: int) -> str | None:
        stream = contract.leaf_stream(self._domain, cls)
        message: RawMessage | StoredHeaders | None
        message = await self._js.get_message(stream, last_by_subject=subject)
        if message is not None and H_RESENT in message.headers:
            message = await self._last_own(stream, subject, seq)
        return None if message is None else message.headers.get(H_POSITION)

    async def _last_own(self, stream: str, subject: str, seq: int) -> StoredHeaders | None:
        """Return an input's last message above a sequence that was not republished."""
        last: list[StoredHeaders] = []

        def take(message: StoredHeaders) -> None:
            if H_RESENT not in message.headers:
                last[:] = [message]

        start = {"deliver_policy": "by_start_sequence", "opt_start_seq": seq + 1, "filter_subject": subject}
        await read_headers(self._nc, self._js, stream, start, take)
        return last[0] if last else None

    async def _read(
        self,
        cls: str,
        start: dict[str, Any],
        take: Callable[[StoredHeaders], None],
        enough: Callable[[], bool] = lambda: False,
    ) -> None:
        only = {"filter_subjects": contract.numbered_subjects(self._domain, cls)}
        stream = contract.leaf_stream(self._domain, cls)
        await read_headers(self._nc, self._js, stream, start | only, take, enough)


class CurrentRecovery:
    """The recovery over the current connection."""

    def __init__(self) -> None:
        self._connected = asyncio.Event()
        self._newest: StreamRecovery | None = None

    @property
    def is_connected(self) -> bool:
        return self._connected.is_set()

    @contextlib.contextmanager
    def connected(self, recovery: StreamRecovery) -> Iterator[None]:
        """Provide this recovery within the scope."""
        self._newest = recovery
        self._connected.set()
        try:
            yield
        finally:
            self._connected.clear()

    async def get(self) -> StreamRecovery:
        """Wait for a connection's recovery, which may end before its use."""
        await self._connected.wait()
        assert self._newest is not None, "a connection has one"
        return self._newest


class ProgressReader:
    """Reads pull inputs' progress from present and removed classes and the state file; `idle` waits for
    batches in flight.
    """

    def __init__(
        self,
        recovery: CurrentRecovery,
        state: StateFile,
        classes: Iterable[str],
        idle: Callable[[str], Awaitable[None]],
    ) -> None:
        self._recovery, self._state, self._classes, self._idle = recovery, state, tuple(classes), idle
        self._removed = set(state.current.removed_classes(self._classes))
        self._unanswered: set[str] = set()
        """Removed classes that failed at first."""

    async def read(self, input_name: str) -> Progress | None:
        """Return an input's progress, or None. Raises `ContractError` for unreadable data."""
        while True:
            await self._idle(input_name)
            recovery = await self._recovery.get()
            by_class = self._state.current.positions
            remembered = {cls: known[input_name] for cls, known in by_class.items() if input_name in known}
            try:
                return await recovery.progress(input_name, await self.streams(recovery), remembered)
            except JetStreamError as error:
                log.warning("input position not readable yet", input=input_name, error=str(error))
                await asyncio.sleep(_AGAIN_SECONDS)

    async def streams(self, recovery: StreamRecovery) -> list[str]:
        """Return the configured and removed classes with streams. A foreign server may forbid the latter.
        Raises `JetStreamError`.
        """
        found = [*self._classes]
        for cls in sorted(self._removed):
            try:
                found += [cls] if await recovery.has_stream(cls) else []
            except UnavailableError:
                if cls not in self._unanswered:
                    self._unanswered.add(cls)
                    raise
                await recovery.message(self._classes[0], 1)  # raises where it answers nothing else either
                self._removed.discard(cls)
                log.warning(
                    "stream of a removed class unreadable: its last lines and its keyed requests may be "
                    "stored again; let the agent ask $JS.API.STREAM.MSG.GET for it",
                    stream=contract.leaf_stream(self._state.current.domain, cls),
                )
        return found


def _sealed(batch: StoredHeaders) -> Instant:
    """Return a batch's seal time. Raises `ContractError`."""
    wall = batch.headers.get(H_SEALED_AT, "")
    if not (wall.isascii() and wall.isdigit()):
        raise ContractError(f"{H_SEALED_AT} {wall!r:.80} is not an integer")
    return Instant(int(wall), contract.parse_clock(batch.headers.get(H_CLOCK, "")))


def _held(sealed: Instant, stored: float) -> float:
    """Return the seconds from seal to storage, between which the clock may differ."""
    return min(max(0.0, stored - sealed.wall / 1e9), _HELD_SECONDS)
