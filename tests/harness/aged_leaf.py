"""What one leaf keeps over the years, with a driven clock: its agent restarts each day, which stores
batches of five classes, is cut off from its hub each week, loses what its streams evict, has its store
restored or lost, steps its clock at each boot and runs commands. The product's own code keeps the state; no
server runs, and no time is waited for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent.base.clock import Instant
from agent.base.metrics import Metrics
from agent.contract import (
    Announce,
    Checkpoint,
    ClassState,
    Clock,
    CommandsWanted,
    MessageId,
    Request,
    StreamState,
    new_epoch,
    new_run,
)
from agent.jetstream import ConsumerInfo, StreamInfo
from agent.leaf import timeline
from agent.leaf.commands.cursor import CommandCursor, parse_position
from agent.leaf.events import BatchStored
from agent.leaf.inputs.file.positions import MAX_FILES, Fingerprint, begin, encode
from agent.leaf.ledger import ClassLedger
from agent.leaf.ledger.evictions import IndexedMessage, StreamObservation
from agent.leaf.ledger.evictions.service import EvictionMonitor
from agent.leaf.ledger.evictions.tracker import EvictionTracker
from agent.leaf.ledger.publisher import LedgerPublisher
from agent.leaf.publish.idempotency import RequestLog
from agent.leaf.publish.idempotency_recovery import append_keys, load_keys, save_keys
from agent.leaf.state import CheckpointLog, forget_checkpoints
from agent.leaf.state_file import StateFile, load

CLASSES: Final = ("alarm", "bulk", "fast", "normal", "slow")
DOMAIN: Final = "edge-00001"
DAY: Final = 86_400
YEAR: Final = 365
_EVICTING: Final = "bulk"
_BEGAN: Final = 1_767_225_600
"""2026-01-01T00:00:00Z."""
_READINGS: Final = 500
_MAX_BYTES: Final = 2**30
_KEPT: Final = 600
"""Messages that the stream of the class that discards has room for."""


@dataclass(slots=True)
class LeafStream:
    """What the server would say of the stream of one class."""

    created: str
    first: int = 1
    last: int = 0

    def info(self, name: str) -> StreamInfo:
        messages = self.last - self.first + 1
        return StreamInfo(name, self.created, self.first, self.last, messages, _MAX_BYTES, {}, [])


class Leaf:
    """One leaf, whose files are in `directory`. Each class stores `batches` a day."""

    def __init__(self, directory: Path, batches: int = 4) -> None:
        self._directory, self._batches = directory, batches
        self._streams = {cls: LeafStream(f"made-{cls}-0") for cls in CLASSES}
        self._commands = self._checkpoints = self._delivered = 0
        self.seconds: list[float] = []
        """Of a processor, what a start and the day that follows took."""
        self.announced = self.recorded = 0
        """Bytes of the newest announcement and of the longest ledger record of the newest run."""

    def live(self, days: int, since: int = 0) -> None:
        """Live through so many days, the first of which has this number."""
        for day in range(since, since + days):
            asyncio.run(self._day(day))

    def sizes(self) -> dict[str, int]:
        """Bytes of every file, and of what the leaf says to others."""
        files = {path.name: path.stat().st_size for path in sorted(self._directory.iterdir())}
        return {**files, "announcement": self.announced, "ledger record": self.recorded}

    async def _day(self, day: int) -> None:
        began = time.process_time()
        file = StateFile(self._directory / "state.json", load(self._directory / "state.json", DOMAIN))
        state, now = file.current, (_BEGAN + day * DAY) * 10**9
        run = new_run(now)
        self._restart(file, day, run, now)
        ledgers = {cls: ClassLedger(DOMAIN, cls, run) for cls in CLASSES}
        monitor = EvictionMonitor(DOMAIN, run, {}, self._directory, state.epochs, ledgers, Metrics())
        publisher = LedgerPublisher(DOMAIN, run, ledgers, file, monitor)
        tracker = EvictionTracker(self._directory, DOMAIN, _EVICTING, run)
        evicting = self._streams[_EVICTING]
        tracker.load(evicting.info(_EVICTING))
        tracker.taken_up()
        agreed = CheckpointLog(state)
        # The stream is not asked, so nothing may be published: only what is noted of it counts.
        with publisher.connected(None, {cls: self._streams[cls].info(cls) for cls in CLASSES}):  # type: ignore[arg-type]
            for cls in CLASSES:
                publisher.recall(cls, self._streams[cls].created, ())
            for number in range(self._batches):
                for cls in CLASSES:
                    self._store(publisher, ledgers[cls], tracker, MessageId(run, cls, number + 1), day)
                self._agree(agreed, run, number, day)
            self._evict(tracker, state.epochs[_EVICTING], day)
        self._run_commands(file, day, now)
        self._remember_keys(day, now)
        self._say(file, publisher, ledgers, run)
        await file.save()
        await file.save_positions()
        self.seconds.append(time.process_time() - began)

    def _restart(self, file: StateFile, day: int, run: str, now: int) -> None:
        """What a boot, a store that is lost once a year and a repaired link leave in the state."""
        state = file.current
        boot = f"00000000-0000-4000-8000-{day:012d}"
        wrong = Instant(day * 10**9, Clock(False, boot, 10**9))
        right = Instant(now, Clock(True, boot, 60 * 10**9))
        for instant in (wrong, right):
            observed = timeline.observe(state.clock, instant, DOMAIN)
            state.clock = observed.timeline
            state.corrections = [*state.corrections, *observed.corrections][-64:]
        if day % 2:
            state.corrections.clear()  # the streams have them
        for cls in CLASSES:
            if cls not in state.epochs or day % 30 == 0:
                state.epochs[cls] = new_epoch()
        if day % YEAR == YEAR - 1:
            for cls in CLASSES:
                if cls in state.acked:
                    state.lose(cls, state.acked[cls])
                self._streams[cls] = LeafStream(f"made-{cls}-{day}", 1, 0)
                forget_checkpoints(state, cls, 1)
            self._delivered = 0

    def _store(
        self,
        publisher: LedgerPublisher,
        ledger: ClassLedger,
        tracker: EvictionTracker,
        ident: MessageId,
        day: int,
    ) -> None:
        stream = self._streams[ident.cls]
        stream.last += 1
        number = ledger.number(_READINGS)
        if day % 7 == 6 and number % 4 == 0:
            ledger.refuse(number, _READINGS, "stream_full")
            return
        ledger.store(number, _READINGS)
        position = None
        if ident.cls == "normal":
            position = _position(day)
        publisher.stored(BatchStored(ident, stream.last, _READINGS, "logs", position))
        if ident.cls == _EVICTING:
            tracker.stored(IndexedMessage(stream.last, ident.run, ident.n, _READINGS))

    def _agree(self, log: CheckpointLog, run: str, number: int, day: int) -> None:
        """An announcement that was answered; there is none while the leaf is cut off."""
        if day % 7 == 6:
            return
        for cls in CLASSES:
            seq = self._streams[cls].last
            self._checkpoints += 1
            agreed = Checkpoint(seq, f"{run}-{cls}-{number + 1}", "TELEMETRY_0", self._checkpoints)
            log.agree(cls, agreed, float(self._checkpoints * 10))

    def _evict(self, tracker: EvictionTracker, epoch: str, day: int) -> None:
        """The stream makes room; while the leaf is cut off, of what the hub does not have."""
        stream = self._streams[_EVICTING]
        stream.first = max(stream.first, stream.last - _KEPT + 1)
        if day % 7 != 6:
            self._delivered = stream.last
        elif day % 14 == 13:
            stream.first = max(stream.first, stream.last - self._batches // 2)
        at = self._delivered
        consumer = ConsumerInfo(epoch, "", at, at, at, 0, 0, 1, 0.0, True, {})
        tracker.look(StreamObservation(stream.info(_EVICTING), consumer, epoch, at), _MAX_BYTES)
        tracker.save(tracker.content())
        tracker.tidy()

    def _run_commands(self, file: StateFile, day: int, now: int) -> None:
        state = file.current
        cursor = CommandCursor(parse_position(state.command) if state.command else None, state.commands_run)
        cursor.enter("mirror", "stream")
        for number in range(3):
            self._commands += 1
            ident = f"command-{day}-{number}"
            taken = cursor.take(self._commands, now + number, ident, "flush")
            if taken is None:
                raise RuntimeError(f"{ident} was taken for one that was run")
            state.command = taken.encode()
            state.commands_run.add((self._commands, now + number, ident))

    def _remember_keys(self, day: int, now: int) -> None:
        """An hour of idempotency keys, a key a second, as the class that discards keeps them."""
        path, requests = self._directory / "requests.log", RequestLog()
        clock = Clock(True, f"00000000-0000-4000-8000-{day:012d}", 60 * 10**9)
        for minute in range(0, 60, 5):
            for second in range(minute * 60, minute * 60 + 300, 10):
                requests.store(_EVICTING, Request(f"key-{day}-{second}", b"1" * 16, "http"), float(second))
            whole = minute % 10 == 0
            moment = float(minute * 60 + 300)
            keys = requests.known(moment) if whole else requests.fresh(moment)
            write: Callable[..., None] = save_keys if whole else append_keys
            write(path, keys, Instant(now + int(moment) * 10**9, clock))
        load_keys(path, Instant(now + 3600 * 10**9, clock))

    def _say(
        self, file: StateFile, publisher: LedgerPublisher, ledgers: dict[str, ClassLedger], run: str
    ) -> None:
        state = file.current
        said = {}
        records = []
        for cls, stream in self._streams.items():
            ledger = ledgers[cls]
            ledger.lost = tuple(state.lost.get(cls, ()))
            records.append(ledger.record(StreamState(stream.created, stream.first, stream.last)).encode())
            said[cls] = ClassState(
                state.epochs[cls],
                stream.created,
                stream.first,
                stream.last,
                stream.last,
                _MAX_BYTES,
                publisher.last(cls),
            )
        self.recorded = max(map(len, records))
        wanted = CommandsWanted(new_epoch(), self._commands, (), False)
        versions = {"agent": "0.1.0", "nats-server": "2.15.1", "python": "3.11.7"}
        announce = Announce(
            DOMAIN, state.machine, run, versions, said, state.checkpoint, "synchronised=yes", wanted
        )
        self.announced = len(announce.encode())


def _position(day: int) -> str:
    """The position of an input that follows a file a day, of which it remembers as many as it may."""
    files = range(max(0, day - MAX_FILES + 1), day + 1)
    mark = Fingerprint(b"head", b"tail")
    return encode(day, [begin(file, f"/var/log/line-{file}.log", file).at(10**6, mark) for file in files])
