"""What a leaf's stream tells of what was stored before: the end of the last run, batches whose ack was lost,
requests of the last ten minutes, positions of pull inputs. Reads only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import structlog
from nats.aio.client import Client

from agent import contract
from agent.contract import H_MESSAGE_ID, H_POSITION, H_REQUESTS, H_RESENT, ContractError
from agent.jetstream import JetStream, RawMessage
from agent.pieces import Progress, newest, parse_progress
from agent.requests import KNOWN_SECONDS, RequestLog
from agent.state import Position
from agent.tail import StoredHeaders, read_headers

log = structlog.get_logger("leaf")


class Recall:
    """The past of a domain's streams as one connection shows it. Everything raises `ApiError` or
    `UnavailableError`."""

    def __init__(self, nc: Client, js: JetStream, domain: str) -> None:
        self._nc, self._js, self._domain = nc, js, domain

    async def batches_above(self, cls: str, seq: int) -> list[StoredHeaders]:
        """The batches and dead letters of a class above a sequence, in order."""
        found: list[StoredHeaders] = []
        start = {"deliver_policy": "by_start_sequence", "opt_start_seq": seq + 1}
        await self._read(cls, start, found.append)
        return found

    async def ids_above(self, cls: str, seq: int) -> dict[str, int]:
        """The message ids of the batches above a sequence, with where they are."""
        found = await self.batches_above(cls, seq)
        return {one.headers[H_MESSAGE_ID]: one.seq for one in found if H_MESSAGE_ID in one.headers}

    async def requests(self, cls: str, known: RequestLog) -> None:
        """Make the requests known that were stored in a class in the last ten minutes."""
        now, monotonic = time.time(), asyncio.get_running_loop().time()
        since = datetime.fromtimestamp(now - KNOWN_SECONDS, UTC)

        def take(message: StoredHeaders) -> None:
            try:
                requests = contract.parse_requests(message.headers.get(H_REQUESTS, ""))
            except ContractError as error:
                log.warning("a stored batch names its requests badly", seq=message.seq, error=str(error))
                return
            for request in requests:
                known.store(cls, request, monotonic - max(0.0, now - message.time))

        start = {"deliver_policy": "by_start_time", "opt_start_time": f"{since:%Y-%m-%dT%H:%M:%S.%f}Z"}
        await self._read(cls, start, take)

    async def progress(
        self, input_name: str, classes: Iterable[str], remembered: Mapping[str, Position]
    ) -> Progress | None:
        """How far a pull input is, by what the streams of these classes and the state file know of it: the
        messages that told of it last may be trimmed, or gone with a lost store. Raises `ContractError` for
        what can't be read."""
        texts = [one.text for one in remembered.values()]
        for cls in classes:
            seq = remembered[cls].seq if cls in remembered else 0
            for subject in (contract.batch_subject, contract.dead_subject):
                text = await self._position(cls, subject(self._domain, cls, input_name), seq)
                texts += [] if text is None else [text]
        return newest(map(parse_progress, texts))

    async def _position(self, cls: str, subject: str, seq: int) -> str | None:
        """The position in the newest message of a subject, None where it has none."""
        stream = contract.leaf_stream(self._domain, cls)
        message: RawMessage | StoredHeaders | None
        message = await self._js.get_message(stream, last_by_subject=subject)
        if message is not None and H_RESENT in message.headers:
            message = await self._last_own(stream, subject, seq)
        return None if message is None else message.headers.get(H_POSITION)

    async def _last_own(self, stream: str, subject: str, seq: int) -> StoredHeaders | None:
        """The last message of an input above a sequence that the input itself sent: one that was published
        again says nothing of where the input is."""
        found: list[StoredHeaders] = []

        def take(message: StoredHeaders) -> None:
            if H_RESENT not in message.headers:
                found[:] = [message]

        start = {
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": seq + 1,
            "filter_subject": subject,
        }
        await read_headers(self._nc, self._js, stream, start, take)
        return found[0] if found else None

    async def _read(self, cls: str, start: dict[str, Any], take: Callable[[StoredHeaders], None]) -> None:
        only = {"filter_subjects": contract.numbered_subjects(self._domain, cls)}
        await read_headers(self._nc, self._js, contract.leaf_stream(self._domain, cls), start | only, take)
