"""Tracks which hub messages survive a power cut.

With interval syncs acks precede the disk, so leaves keep copies. The registrar syncs the file system, and
proposes only checkpoints seen before. nats-server's interval proves nothing, as disks may lag and recovered
data is not synced. After a reboot all epochs change (`records.admitted`), as sources may have passed a loss.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import structlog

from agent.base.clock import machine
from agent.base.logs import LogEdge
from agent.base.wait import event_within, loop_time
from agent.config import Config
from agent.contract import MAX_INT, Checkpoint, ClassAnswer
from agent.hub.registrar.aggregate import Observation
from agent.hub.registrar.records import HubPosition
from agent.jetstream import StreamInfo, UnavailableError
from agent.server.setup import hub_sync_seconds, store_directory

log = structlog.get_logger("registrar")


class Durability:
    """Syncs the file system of `store` each `seconds` (0: server syncs before acks); `look` returns
    observations.

    `sync` needs `run`.
    """

    def __init__(self, store: Path, seconds: float, look: Callable[[], Mapping[str, Observation]]) -> None:
        self._store, self.seconds, self._look = store, seconds, look
        self.boot = machine.boot if seconds else ""
        """Identifies the page cache; "" if synced."""
        self._ends: dict[str, tuple[str, int]] = {}
        self._began_at = self._failed_at = float("-inf")
        self._run = 0
        self._trouble = ""
        self._wanted, self._tried = asyncio.Event(), asyncio.Condition()
        self._failing = LogEdge(log, "the hub's disk is synced again", error=True)

    async def begin(self) -> None:
        """Forget synced positions after the server's absence."""
        self._run += 1
        self._ends.clear()
        with contextlib.suppress(UnavailableError):
            await self.sync()

    async def run(self) -> None:
        """Sync at intervals and on demand, until cancelled."""
        while self.seconds:
            if await event_within(self._wanted, self.seconds) or self._ends != self._seen():
                await self._sync()

    async def sync(self, since: float | None = None) -> None:
        """Wait until everything acknowledged by `since` (default: now) is synced, shared. Raises
        `UnavailableError`.
        """
        asked = loop_time()
        since = asked if since is None else since
        if not self.seconds or self._began_at >= since:
            return
        self._wanted.set()
        async with self._tried:
            await self._tried.wait_for(lambda: self._began_at >= since or self._failed_at >= asked)
        if self._began_at < since:
            raise UnavailableError(self._trouble)

    def synced(self, info: StreamInfo) -> int:
        """Return an aggregate's synced sequence."""
        if not self.seconds:
            return MAX_INT
        created, last = self._ends.get(info.name, ("", 0))
        return last if created == info.created else 0

    async def _sync(self) -> None:
        self._wanted.clear()
        began, run, ends = loop_time(), self._run, self._seen()
        try:
            await asyncio.to_thread(sync_file_system, self._store)
        except OSError as error:
            self._failed_at = began
            self._trouble = f"the disk of {self._store} cannot be synced: {error}"
            self._failing.begin("hub's disk not synced", reason=self._trouble)
        else:
            self._began_at = began
            if run == self._run:
                self._ends = ends
            self._failing.end()
        async with self._tried:
            self._tried.notify_all()

    def _seen(self) -> dict[str, tuple[str, int]]:
        return {name: (seen.info.created, seen.info.last) for name, seen in self._look().items()}


def durability_of(config: Config, look: Callable[[], Mapping[str, Observation]]) -> Durability:
    return Durability(store_directory(config), hub_sync_seconds(config), look)


def sync_file_system(path: Path) -> None:
    """Sync a path's file system. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
    finally:
        os.close(descriptor)


class Proposals:
    """Checkpoints waiting for the disk, oldest per class. Pure."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, str], tuple[str, Checkpoint]] = {}

    def clear(self) -> None:
        """Forget them after the server's absence."""
        self._waiting.clear()

    def wait(self, domain: str, cls: str) -> bool:
        return (domain, cls) in self._waiting

    def synced(
        self, domain: str, cls: str, epoch: str, newest: Checkpoint | None, synced: int
    ) -> Checkpoint | None:
        """Return what may be proposed: `newest` or an earlier one, synced up to `synced`."""
        key = domain, cls
        before = self._waiting.pop(key, None)
        if newest is None or newest.hub_seq <= synced:
            return newest
        if before is None or before[0] != epoch or before[1].hub_stream != newest.hub_stream:
            self._waiting[key] = epoch, newest
            return None
        is_synced = before[1].hub_seq <= synced
        self._waiting[key] = (epoch, newest) if is_synced else before
        return before[1] if is_synced else None


def bounded(
    answer: ClassAnswer, held: HubPosition | None, proposal: Checkpoint | None, synced: int, *, whole: bool
) -> ClassAnswer:
    """Limit an answer by the synced sequence. Unless `whole`, it hides ids of unsynced cursors."""
    known = answer.cursor == 0 or held is None or (held.hub_seq or held.last) <= synced
    message_id = answer.message_id if known or whole else ""
    return replace(answer, checkpoint=proposal, synced=known, message_id=message_id)
