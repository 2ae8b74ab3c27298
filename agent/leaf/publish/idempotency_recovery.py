"""The idempotency keys that are known over a restart: read back from the stream's tail, and from files for
those whose messages were trimmed, or discarded by the stream itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Final

import structlog

from agent.base.clock import ClockReader
from agent.jetstream import JetStreamError
from agent.leaf.publish import request_file
from agent.leaf.publish.idempotency import KNOWN_SECONDS
from agent.leaf.publish.publisher import Publisher
from agent.leaf.publish.stream_recovery import StreamRecovery

_AGAIN_SECONDS: Final = 1.0
_NOTE_SECONDS: Final = 1.0

log = structlog.get_logger("requests")


class KnownRequests:
    """Fills a publisher's keys of some `classes`, and keeps them in files in `directory`: all of them before
    a trim, and those of the classes whose streams are `discarding` once a second. `recall` returns once there
    is a connection."""

    def __init__(
        self,
        directory: Path,
        publisher: Publisher,
        classes: Iterable[str],
        discarding: Iterable[str],
        recall: Callable[[], Awaitable[StreamRecovery]],
    ) -> None:
        self._path, self._added = directory / "requests.json", directory / "requests.log"
        self._publisher, self._recall = publisher, recall
        self._classes, self._discarding = tuple(classes), frozenset(discarding)
        self._begun = float("-inf")

    async def run(self) -> None:
        """Read back which requests were stored in the last ten minutes; keyed requests and trimming wait for
        it."""
        loop = asyncio.get_running_loop()
        requests = self._publisher.requests
        for path in (self._path, self._added):
            for cls, request, age in request_file.load(path, ClockReader().look()):
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

    async def keep(self) -> None:
        """Note which requests were stored in streams that discard, which drop a batch whenever they need its
        room: once a second, until cancelled."""
        if not self._discarding:
            return
        await self._publisher.recalled.wait()
        failing = False
        while True:
            try:
                await self._note()
            except OSError as error:
                self._begun = float("-inf")  # all of it is written again, with what was not added now
                if not failing:
                    log.error("cannot write idempotency keys", path=str(self._added), error=str(error))
                failing = True
            else:
                failing = False
            await asyncio.sleep(_NOTE_SECONDS)

    async def _note(self) -> None:
        now, requests = asyncio.get_running_loop().time(), self._publisher.requests
        anew = now - self._begun > KNOWN_SECONDS
        fresh = requests.fresh(now)
        known = requests.known(now) if anew else fresh
        noted = {key: one for key, one in known.items() if key[0] in self._discarding}
        if noted or anew:
            write = request_file.save if anew else request_file.append
            await asyncio.to_thread(write, self._added, noted, ClockReader().look())
        self._begun = now if anew else self._begun
