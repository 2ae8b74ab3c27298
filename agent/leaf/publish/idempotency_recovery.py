"""Recovers the idempotency keys after a restart: from the stream's tail, and from files.

A trim takes batches out of the stream, and so does a stream that discards. What is known is therefore written
into files in the state directory: before each trim, and for streams that discard once a second."""

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
    """Fills a publisher's keys of the configured `classes` and of those that `streams` names beside them: a
    request may be repeated after its class was removed. Keeps the keys in files in `directory`: all of them
    before a trim, and those of the classes whose streams are `discarding` once a second. `recall` returns
    once there is a connection."""

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
        """Removed classes whose streams could not be read at the first attempt."""
        self._begun = float("-inf")

    async def run(self) -> None:
        """Read back which requests were stored in the last ten minutes; keyed requests and trimming wait for
        it."""
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
        """Read one class. A server that the agent does not run may not let it read a removed class: that is
        logged at the second attempt. Raises `JetStreamError`."""
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
        """Keep the keys that are known now. Raises `OSError`."""
        known = self._publisher.requests.known(loop_time())
        await asyncio.to_thread(save_keys, self._path, known, ClockReader().look())

    async def keep(self) -> None:
        """Note which requests were stored in streams that discard, which drop a batch whenever they need its
        room: once a second, until cancelled."""
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
    """`known` maps a key of a class, behind its scope and a colon, to the mark of its content in hexadecimal
    digits and to when it is forgotten, in seconds since 1970 by the wall clock of `saved` (ns since 1970),
    when the clocks were as `clock` says."""

    version: int
    known: dict[str, dict[str, tuple[str, float]]]
    saved: int
    clock: str


def save_keys(path: Path, known: Mapping[Key, tuple[bytes, float]], now: Instant) -> None:
    """Replace the file. `known` maps a key to the mark of its content and the seconds for which it stays
    known. Raises `OSError`."""
    write_private(path, _encoded_keys(known, now))


def append_keys(path: Path, known: Mapping[Key, tuple[bytes, float]], now: Instant) -> None:
    """Add to the file, which `save_keys` has made, like that. Raises `OSError`."""
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
    """The requests that are still to be known, each with its class and the seconds since it was stored. What
    cannot be used of a file is logged and left out: it holds no readings. A kill may have cut off what was
    added last."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    except OSError as error:
        log.error("cannot read idempotency keys", path=str(path), error=str(error))
        return []
    return [request for at, line in enumerate(lines) for request in _read_line(path, line, now, cut=at > 0)]


def _read_line(path: Path, line: bytes, now: Instant, *, cut: bool) -> list[tuple[str, Request, float]]:
    """The requests of one line, which `cut` says may have been cut off at the end of the file."""
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
    """The requests of a file with their class and when they are forgotten; raises `ValueError`."""
    for cls, scoped in file.known.items():
        for name, (text, until) in scoped.items():
            scope, _, key = name.partition(":")
            digest, part = divide_mark(bytes.fromhex(text))
            yield cls, Request(key, digest, scope, part), until


def _wall_now(file: _KeyFile, now: Instant) -> float:
    """Now, in seconds since 1970 by the wall clock as it was when the file was written."""
    return file.saved / 1e9 + Ages(now).of(Instant(file.saved, parse_clock(file.clock)))
