"""Watches the streams that discard and says what they discarded, to the ledgers and the metrics. It stands in
nobody's way: what it can't look at now it looks at later."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import structlog
from nats.aio.client import Client

from agent import contract
from agent.config import StreamClass
from agent.contract import Ledger, Readings, StreamState
from agent.discards.claims import RunClaims
from agent.discards.index import Entry
from agent.discards.judge import Seen
from agent.discards.shelf import Shelf
from agent.jetstream import JetStream, JetStreamError, StreamInfo
from agent.ledger import ClassLedger
from agent.metrics import Metrics
from agent.tail import read_headers

_SAVE_SECONDS: Final = 1.0

log = structlog.get_logger("ledger")


class Discards:
    """The classes of a leaf whose streams discard; all others pass by. `epochs` are the present ones of the
    link, `ledgers` are those of this `run`, which are told."""

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
        self._shelves = {name: Shelf(directory, domain, name, run) for name in self._classes}
        self._confirmed = dict.fromkeys(self._classes, 0)
        self._js: JetStream | None = None
        self._due = asyncio.Event()

    def __bool__(self) -> bool:
        return bool(self._shelves)

    async def attach(self, nc: Client, js: JetStream, streams: Mapping[str, StreamInfo]) -> None:
        """Work over this connection; these are the streams behind it. Raises `JetStreamError`."""
        for name, shelf in self._shelves.items():
            try:
                above = shelf.load(streams[name])
                if above is not None:
                    start = {"deliver_policy": "by_start_sequence", "opt_start_seq": above + 1}
                    await read_headers(nc, js, streams[name].name, start, shelf.read)
                    shelf.taken_up()
            except OSError as error:
                log.error("what is discarded cannot be remembered", **{"class": name}, error=str(error))
            self._tell(name)
        self._js = js
        self._due.set()

    def detach(self) -> None:
        """There is no connection to work over."""
        self._js = None
        for shelf in self._shelves.values():
            with contextlib.suppress(OSError):  # what is not written is read from the stream
                shelf.content()

    def stored(self, cls: str, seq: int, run: str = "", n: int = 0, readings: int = 0) -> None:
        """A message of the agent was stored; without a run it is not one that has a number."""
        if cls in self._shelves:
            self._shelves[cls].stored(Entry(seq, run, n, readings))

    def trimmed(self, cls: str, first: int, last: int) -> None:
        """The agent has purged a stream of what the hub has."""
        if cls in self._shelves:
            self._shelves[cls].trimmed(first, last)

    def seen(self, cls: str, confirmed: int) -> None:
        """The stream of a class was looked at, and up to here the hub is known to hold all of this epoch."""
        if cls in self._shelves:
            self._confirmed[cls] = confirmed
            self._due.set()

    async def run(self) -> None:
        """Look whenever somebody has, until cancelled."""
        while True:
            await self._due.wait()
            self._due.clear()
            for name in self._shelves:
                try:
                    await self.look(name)
                except (JetStreamError, OSError) as error:
                    log.warning("what was discarded is told later", **{"class": name}, error=str(error))
            await asyncio.sleep(_SAVE_SECONDS)

    async def look(self, name: str) -> None:
        """Say what one class has discarded since the last look. Raises `JetStreamError` or `OSError`."""
        if self._js is None or not self._shelves[name].loaded:
            return
        stream, epoch = contract.leaf_stream(self._domain, name), self._epochs[name]
        confirmed = self._confirmed[name]
        info = await self._js.stream_info(stream)
        consumer = await self._js.find_consumer(stream, contract.link_consumer(epoch))
        if consumer is None or info.created != self._shelves[name].claims.created:
            return
        seen = Seen(
            info.first,
            confirmed,
            epoch,
            consumer.start,
            consumer.delivered,
            consumer.deliveries,
            consumer.ack_floor,
        )
        shelf = self._shelves[name]
        claimed = shelf.look(info, seen, self._classes[name].max_bytes)
        await asyncio.to_thread(shelf.save, shelf.content())
        shelf.tidy()
        for reason, readings in claimed.items():
            self._metrics.discarded.labels(name, reason).inc(readings)
        if claimed:
            self._tell(name)
            log.warning("discarded before the hub had it", **{"class": name}, readings=claimed)

    def due(self, cls: str) -> list[str]:
        """Earlier runs of which something was discarded that no record says which the stream holds or the hub
        has."""
        if cls not in self._shelves:
            return []
        known = self._shelves[cls].claims.runs
        return [run for run, one in known.items() if run != self._run and not one.recorded]

    def record(self, cls: str, run: str, stream: StreamState) -> Ledger:
        """What was discarded of an earlier run, as a record of it."""
        one = self._shelves[cls].claims.runs[run]
        ranges = tuple(one.ranges)
        return Ledger(
            domain=self._domain,
            cls=cls,
            run=run,
            n=max((last for _, last, _, _ in ranges), default=0),
            stored=tuple((first, last) for first, last, _, _ in ranges),
            readings=Readings(one.readings, one.readings, 0, one.readings),
            stream=stream,
            discarded=ranges,
        )

    def recorded(self, cls: str, run: str, seq: int) -> None:
        """A record of an earlier run was stored."""
        self._shelves[cls].claims.runs[run].recorded = seq

    def status(self, cls: str) -> dict[str, Any] | None:
        """What a class has discarded, as a row of `/status`; None for one that does not."""
        if cls not in self._shelves:
            return None
        claims = self._shelves[cls].claims
        return {
            "readings": sum(one.readings for one in claims.runs.values()),
            "direct": sum(direct for _, _, direct, _ in claims.gone),
            "in_doubt": len(claims.doubtful),
        }

    def _tell(self, cls: str) -> None:
        claims = self._shelves[cls].claims
        own = claims.runs.get(self._run, RunClaims())
        self._ledgers[cls].discard(tuple(own.ranges), own.readings, tuple(claims.gone))
