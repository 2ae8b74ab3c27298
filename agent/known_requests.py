"""The idempotency keys that are known over a restart: read back from the stream's tail, and from a file for
those whose messages were trimmed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Final

import structlog

from agent import request_file
from agent.clock import ClockReader
from agent.jetstream import JetStreamError
from agent.publisher import Publisher
from agent.recall import Recall

_AGAIN_SECONDS: Final = 1.0

log = structlog.get_logger("requests")


class KnownRequests:
    """Fills a publisher's keys of some classes, and keeps them in the file at `path`. `recall` returns once
    there is a connection."""

    def __init__(
        self,
        path: Path,
        publisher: Publisher,
        classes: Iterable[str],
        recall: Callable[[], Awaitable[Recall]],
    ) -> None:
        self._path, self._publisher, self._classes = path, publisher, tuple(classes)
        self._recall = recall

    async def run(self) -> None:
        """Read back which requests were stored in the last ten minutes; keyed requests and trimming wait for
        it."""
        loop = asyncio.get_running_loop()
        requests = self._publisher.requests
        for cls, request, age in request_file.load(self._path, ClockReader().look()):
            requests.store(cls, request, loop.time() - age)
        while True:
            recall = await self._recall()
            try:
                for cls in self._classes:
                    await recall.requests(cls, requests)
            except JetStreamError as error:
                log.warning("idempotency keys cannot be read back yet", error=str(error))
                await asyncio.sleep(_AGAIN_SECONDS)
            else:
                self._publisher.recalled.set()
                return

    async def save(self) -> None:
        """Keep the keys that are known now. Raises `OSError`."""
        known = self._publisher.requests.known(asyncio.get_running_loop().time())
        await asyncio.to_thread(request_file.save, self._path, known, ClockReader().look())
