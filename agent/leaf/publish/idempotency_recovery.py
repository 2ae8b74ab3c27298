"""Recovers idempotency keys after a restart from streams and files.

Trimming and discarding remove batches, so keys are saved before each trim, and every second for discarding
streams.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec
import structlog
from msgspec import Struct

from agent.base.clock import ClockReader, Instant
from agent.base.files import write_private
from agent.base.logs import LogEdge
from agent.base.wait import loop_time
from agent.contract import Request, divide_mark, parse_clock
from agent.jetstream import JetStreamError, UnavailableError
from agent.leaf.publish.idempotency import KNOWN_SECONDS, Ages, Key
from agent.leaf.publish.publisher import Publisher
from agent.leaf.publish.stream_recovery import StreamRecovery

VERSION: Final = 1

_AGAIN_SECONDS: Final = 1.0
_NOTE_SECONDS: Final = 1.0

log = structlog.get_logger("requests")


class IdempotencyRecovery:
    """Restores a publisher's keys for configured `classes` and removed ones in `streams`.

    Saves keys in `directory`: all before a trim, those of `discarding` classes every second. `recall` returns
    once connected.
    """

    def __init__(
        self,
        directory: Path,
        publisher: Publisher,
        classes: Iterable[str],
        discarding: Iterable[str],
        streams: Callable[[StreamRecovery], Awaitable[Iterable[str]]],
        recall: Callable[[], Awaitable[StreamRecovery]],
    ) -> None:
        self._path, self._added = directory / "requests.json", directory / "requests.log"
        self._publisher, self._recall = publisher, recall
        self._classes, self._discarding = tuple(classes), frozenset(discarding)
        self._streams = streams
        self._unanswered: set[str] = set()
        """Removed classes whose first read failed."""
        self._begun = float("-inf")

    async def run(self) -> None:
        """Read the requests of the last ten minutes; keyed requests and trimming wait for it."""
        loop = asyncio.get_running_loop()
        requests = self._publisher.requests
        for path in (self._path, self._added):
            for cls, request, age in load_keys(path, ClockReader().look()):
                requests.store(cls, request, loop.time() - age)
        while True:
            recall = await self._recall()
            try:
                for cls in await self._streams(recall):
                    await self._read(recall, cls)
            except JetStreamError as error:
                log.warning("idempotency keys cannot be read back yet", error=str(error))
                await asyncio.sleep(_AGAIN_SECONDS)
            else:
                self._publisher.recalled.set()
                return

    async def _read(self, recall: StreamRecovery, cls: str) -> None:
        """Read one class. For a removed class, a foreign server's refusal is logged at the second attempt.
        Raises `JetStreamError`.
        """
        try:
            await recall.requests(cls, self._publisher.requests)
        except UnavailableError as error:
            if cls in self._classes or cls not in self._unanswered:
                self._unanswered.add(cls)
                raise
            await recall.message(self._classes[0], 1)  # raises where the server answers nothing else either
            log.warning(
                "idempotency keys of a removed class unreadable: a request repeated under one may be stored "
                "again; let the agent read its stream until ten minutes after the change",
                cls=cls,
                error=str(error),
            )

    async def save(self) -> None:
        """Save the known keys. Raises `OSError`."""
        known = self._publisher.requests.known(loop_time())
        await asyncio.to_thread(save_keys, self._path, known, ClockReader().look())

    async def keep(self) -> None:
        """Save keys of discarding streams every second, until cancelled."""
        if not self._discarding:
            return
        await self._publisher.recalled.wait()
        failing = LogEdge(log, error=True)
        while True:
            try:
                await self._note()
            except OSError as error:
                self._begun = float("-inf")  # all of it is written again, with what was not added now
                failing.begin("cannot write idempotency keys", path=str(self._added), error=str(error))
            else:
                failing.end()
            await asyncio.sleep(_NOTE_SECONDS)

    async def _note(self) -> None:
        now, requests = loop_time(), self._publisher.requests
        rewrite = now - self._begun > KNOWN_SECONDS
        fresh = requests.fresh(now)
        known = requests.known(now) if rewrite else fresh
        # What is written again also has what a class discarded before its configuration was changed.
        noted = known if rewrite else {key: mark for key, mark in known.items() if key[0] in self._discarding}
        if noted or rewrite:
            write = save_keys if rewrite else append_keys
            await asyncio.to_thread(write, self._added, noted, ClockReader().look())
        self._begun = now if rewrite else self._begun


class _KeyFile(Struct):
    """One line: `known` maps `class` `scope:key` to content mark (hex) and expiry in seconds of the wall
    clock at `saved`.

    `saved` is in ns since 1970, `clock` the machine's clocks then.
    """

    version: int
    known: dict[str, dict[str, tuple[str, float]]]
    saved: int
    clock: str


def save_keys(path: Path, known: Mapping[Key, tuple[bytes, float]], now: Instant) -> None:
    """Replace the file. `known` maps keys to content mark and remaining seconds. Raises `OSError`."""
    write_private(path, _encoded_keys(known, now))


def append_keys(path: Path, known: Mapping[Key, tuple[bytes, float]], now: Instant) -> None:
    """Append to a file of `save_keys`. Raises `OSError`."""
    with path.open("ab") as file:
        file.write(_encoded_keys(known, now))
        file.flush()
        os.fsync(file.fileno())


def _encoded_keys(known: Mapping[Key, tuple[bytes, float]], now: Instant) -> bytes:
    kept: dict[str, dict[str, tuple[str, float]]] = {}
    for (cls, name), (mark, left) in known.items():
        kept.setdefault(cls, {})[name] = (mark.hex(), now.wall / 1e9 + left)
    return msgspec.json.encode(_KeyFile(VERSION, kept, saved=now.wall, clock=str(now.clock))) + b"\n"


def load_keys(path: Path, now: Instant) -> list[tuple[str, Request, float]]:
    """Return unexpired requests with class and age in seconds. Logs and skips unusable parts; a kill may
    truncate the end.
    """
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    except OSError as error:
        log.error("cannot read idempotency keys", path=str(path), error=str(error))
        return []
    return [request for at, line in enumerate(lines) for request in _read_line(path, line, now, cut=at > 0)]


def _read_line(path: Path, line: bytes, now: Instant, *, cut: bool) -> list[tuple[str, Request, float]]:
    """Return a line's requests; `cut` for a possibly truncated last line."""
    try:
        file = msgspec.json.decode(line, type=_KeyFile)
        if file.version != VERSION:
            log.error("idempotency keys are of another version", path=str(path), version=file.version)
            return []
        wall_now = _wall_now(file, now)
        requests = list(_requests_of(file))
    except (ValueError, msgspec.MsgspecError) as error:
        if not cut or line.endswith(b"\n"):
            log.error("idempotency keys of trimmed batches are lost", path=str(path), error=str(error))
        return []
    return [
        (cls, request, max(0.0, KNOWN_SECONDS - (until - wall_now)))
        for cls, request, until in requests
        if until > wall_now
    ]


def _requests_of(file: _KeyFile) -> Iterator[tuple[str, Request, float]]:
    """Yield requests with class and expiry; raises `ValueError`."""
    for cls, scoped in file.known.items():
        for name, (text, until) in scoped.items():
            scope, _, key = name.partition(":")
            digest, part = divide_mark(bytes.fromhex(text))
            yield cls, Request(key, digest, scope, part), until


def _wall_now(file: _KeyFile, now: Instant) -> float:
    """Return now in seconds of the wall clock at the time of writing."""
    return file.saved / 1e9 + Ages(now).of(Instant(file.saved, parse_clock(file.clock)))
