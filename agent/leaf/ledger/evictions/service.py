"""Watches discarding streams and reports evictions in ledgers and metrics, outside the publish path."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import structlog
from nats.aio.client import Client

from agent import contract
from agent.base.logs import LogEdge
from agent.base.metrics import Metrics
from agent.base.wait import Backoff, loop_time
from agent.config import StreamClass
from agent.contract import Ledger, Readings, StreamState
from agent.jetstream import JetStream, JetStreamError, StreamInfo
from agent.jetstream.readers import StoredHeaders, read_headers
from agent.leaf.ledger import ClassLedger
from agent.leaf.ledger.evictions import FULL, PURGED, EvictedRun, IndexedMessage, StreamObservation
from agent.leaf.ledger.evictions.tracker import EvictionTracker

_SAVE_SECONDS: Final = 1.0
_TELL_SECONDS: Final = 60.0
_LONGEST_SECONDS: Final = 30.0

log = structlog.get_logger("ledger")


class EvictionMonitor:
    """Watches a leaf's classes whose streams discard; ignores others.

    `epochs` are the link's present ones, `ledgers` those of this `run`.
    """

    def __init__(
        self,
        domain: str,
        run: str,
        classes: Mapping[str, StreamClass],
        directory: Path,
        epochs: Mapping[str, str],
        ledgers: Mapping[str, ClassLedger],
        metrics: Metrics,
    ) -> None:
        self._domain, self._run, self._epochs, self._ledgers = domain, run, epochs, ledgers
        self._metrics = metrics
        self._classes = {name: cls for name, cls in classes.items() if cls.discard == "old"}
        self._trackers = {name: EvictionTracker(directory, domain, name, run) for name in self._classes}
        self._confirmed = dict.fromkeys(self._classes, 0)
        self._above: dict[str, int] = {}
        self.lost = dict.fromkeys(classes, 0)
        """Discarded readings and direct messages per class since start."""
        self._saving = asyncio.Lock()
        self._told: dict[str, tuple[float, int]] = {}
        """Time and lost readings of the last log entry per class."""
        self._postponed = {name: LogEdge(log.bind(**{"class": name})) for name in self._classes}
        self._behind: tuple[Client, JetStream] | None = None
        self._due = {name: asyncio.Event() for name in self._classes}
        for name in self._classes:
            for reason in (
                FULL,
                PURGED,
            ):  # a counter that begins at 0 shows its first event, after a restart too
                metrics.discarded.labels(name, reason)

    def __bool__(self) -> bool:
        return bool(self._trackers)

    @contextlib.contextmanager
    def connected(self, nc: Client, js: JetStream, streams: Mapping[str, StreamInfo]) -> Iterator[None]:
        """Use this connection and its streams within the scope."""
        for name in self._trackers:
            try:
                self._load(name, streams[name])
            except OSError as error:
                log.error("cannot write the eviction record", **{"class": name}, error=str(error))
        self._behind = nc, js
        for due in self._due.values():
            due.set()
        try:
            yield
        finally:
            self._behind = None
            for tracker in self._trackers.values():
                with contextlib.suppress(OSError):  # what is not written is read from the stream
                    tracker.content()

    def stored(self, cls: str, seq: int, run: str = "", n: int = 0, readings: int = 0) -> None:
        """Note a stored agent message; without run it has no number."""
        if cls in self._trackers:
            self._trackers[cls].stored(IndexedMessage(seq, run, n, readings))

    async def trims(self, cls: str, first: int, last: int) -> None:
        """Note a coming purge of messages that the hub has."""
        tracker = self._trackers.get(cls)
        if tracker is None:
            return
        tracker.trims(first, last, self._epochs[cls])
        if tracker.claims.created:  # else the record on disk is not read yet
            try:
                await self._save(tracker)
            except OSError as error:
                log.warning("cannot write the eviction record", **{"class": cls}, error=str(error))

    async def _save(self, tracker: EvictionTracker) -> None:
        async with self._saving:
            await asyncio.to_thread(tracker.save, tracker.content())

    def seen(self, cls: str, confirmed: int) -> None:
        """Note an inspected stream and the hub's confirmed sequence of this epoch."""
        if cls in self._trackers:
            self._confirmed[cls] = confirmed
            self._due[cls].set()

    async def run(self) -> None:
        """Follow all classes independently, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for name in self._trackers:
                group.create_task(self._follow(name))

    async def _follow(self, name: str) -> None:
        due, backoff = self._due[name], Backoff(2 * _SAVE_SECONDS, _LONGEST_SECONDS)
        while True:
            await due.wait()
            due.clear()
            try:
                await self._take_up(name)
                await self.look(name)
                pause = _SAVE_SECONDS
                backoff.reset()
                self._postponed[name].end()
            except (JetStreamError, OSError) as error:
                self._postponed[name].begin("eviction accounting postponed", error=str(error))
                pause = backoff.next()
                due.set()
            await asyncio.sleep(pause)

    def _load(self, name: str, info: StreamInfo) -> None:
        self._above.pop(name, None)
        above = self._trackers[name].load(info)
        if above is not None:
            self._above[name] = above
        self._tell(name)

    async def _take_up(self, name: str) -> None:
        """Read the agent's messages above the known ones, skipping those of devices. Raises `JetStreamError`
        or `OSError`.
        """
        tracker, behind = self._trackers[name], self._behind
        if behind is None or tracker.loaded:
            return
        nc, js = behind
        stream = contract.leaf_stream(self._domain, name)
        if name not in self._above:  # the disk failed before
            self._load(name, await js.stream_info(stream))
        own = contract.own_subjects(self._domain, name)

        def read(message: StoredHeaders) -> None:
            if self._behind is behind:  # otherwise the tracker was reloaded for a new connection
                tracker.read(message)

        while self._behind is behind and not tracker.loaded:
            start = {
                "deliver_policy": "by_start_sequence",
                "opt_start_seq": max(self._above[name], tracker.top) + 1,
                "filter_subjects": own,
            }
            await read_headers(nc, js, stream, start, read)
            if self._behind is behind:
                try:
                    tracker.taken_up()
                except OSError:
                    del self._above[name]  # what the disk has not taken is read again
                    raise

    async def look(self, name: str) -> None:
        """Report a class's discards since the last look. Raises `JetStreamError` or `OSError`."""
        if self._behind is None or not self._trackers[name].loaded:
            return
        _, js = self._behind
        stream, epoch = contract.leaf_stream(self._domain, name), self._epochs[name]
        confirmed = self._confirmed[name]
        info = await js.stream_info(stream)
        consumer = await js.find_consumer(stream, contract.link_consumer(epoch))
        if consumer is None or info.created != self._trackers[name].claims.created:
            return
        tracker = self._trackers[name]
        seen = StreamObservation(info, consumer, epoch, confirmed)
        claimed = tracker.look(seen, self._classes[name].max_bytes)
        self.lost[name] += sum(claimed.values())
        # Before the disk is asked: the next look does not find it again.
        for reason, readings in claimed.items():
            self._metrics.discarded.labels(name, reason).inc(readings)
        if claimed:
            self._tell(name)
        self._log_loss(name)
        await self._save(tracker)
        tracker.tidy()

    def _log_loss(self, name: str) -> None:
        """Log losses at most once a minute."""
        at, lost = self._told.get(name, (-_TELL_SECONDS, 0))
        if self.lost[name] > lost and loop_time() - at >= _TELL_SECONDS:
            self._told[name] = loop_time(), self.lost[name]
            log.warning("discarded before the hub had it", **{"class": name}, readings=self.lost[name] - lost)

    def due(self, cls: str) -> list[str]:
        """Return earlier runs with discards that no kept record reports."""
        if cls not in self._trackers:
            return []
        runs = self._trackers[cls].claims.runs
        return [run for run, claims in runs.items() if run != self._run and not claims.recorded]

    def record(self, cls: str, run: str, stream: StreamState) -> Ledger:
        """Return an earlier run's discards as a ledger record."""
        claims = self._trackers[cls].claims.runs[run]
        ranges = tuple(claims.ranges)
        return Ledger(
            domain=self._domain,
            cls=cls,
            run=run,
            n=max((last for _, last, _, _ in ranges), default=0),
            stored=tuple((first, last) for first, last, _, _ in ranges),
            readings=Readings(claims.readings, claims.readings, 0, claims.readings),
            stream=stream,
            discarded=ranges,
        )

    def recorded(self, cls: str, record: Ledger, seq: int) -> None:
        """Note a stored record of an earlier run; later discards need another."""
        claims = self._trackers[cls].claims.runs.get(record.run)
        if claims is not None and tuple(claims.ranges) == record.discarded:
            claims.recorded = seq

    def status(self, cls: str) -> dict[str, Any] | None:
        """Return a class's discards for `/status`, None if it does not discard."""
        if cls not in self._trackers:
            return None
        claims = self._trackers[cls].claims
        return {
            "readings": sum(run.readings for run in claims.runs.values()),
            "direct": sum(direct for _, _, direct, _ in claims.gone),
            "in_doubt": len(claims.doubtful),
        }

    def _tell(self, cls: str) -> None:
        claims = self._trackers[cls].claims
        own = claims.runs.get(self._run, EvictedRun())
        self._ledgers[cls].discard(tuple(own.ranges), own.readings, tuple(claims.gone))
