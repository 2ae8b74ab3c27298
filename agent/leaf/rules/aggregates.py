"""Keeps windows of aggregated readings and stores closed ones.

Additions are logged on disk with the request key or piece before the sender is answered, so repeats are not
counted twice. Closed windows are logged as a piece before the core stores it, so a repeat is the same.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, Protocol

import structlog
from msgspec import MsgspecError, Raw

from agent.base.logs import LogEdge
from agent.base.metrics import Metrics
from agent.base.wait import event_within, loop_time, unless
from agent.config import Rule
from agent.contract import RULES_INPUT, Request
from agent.leaf.intake import Chunk, Intake, RefusalReason, RefusedError, UnknownOutcomeError
from agent.leaf.publish.idempotency import name_of
from agent.leaf.publish.pull_chunks import Fragment
from agent.leaf.rules.record_log import (
    Closing,
    KnownKey,
    Place,
    RecordLog,
    Snapshot,
    TakenRecord,
    UnsureError,
)
from agent.leaf.rules.split import Gathered, aggregate_lines
from agent.leaf.rules.taken_keys import TakenKeys
from agent.leaf.rules.windows import MAX_OPEN, OpenWindow, OpenWindows

_MOST: Final = 800
"""Windows per piece, each up to five lines; a position covers 8,192."""
_LOOK_SECONDS: Final = 1.0
_SOON_SECONDS: Final = 0.25
"""Interval of checks, and while many windows are open."""
_AGAIN_SECONDS: Final = 1.0

log = structlog.get_logger("aggregates")


class PieceStore(Protocol):
    """Stores pieces: the core."""

    async def stored_of(self, input_name: str, piece: Chunk) -> int | None:
        """Return a bitmap of a piece's stored lines, None for all."""

    async def submit_piece(self, input_name: str, cls: str, chunk: Chunk, parts: Sequence[Fragment]) -> None:
        """Store a piece's readings in these parts."""


_Waiter = asyncio.Future[None]


class RuleAggregates:
    """The windows of one agent; `run` stores closed ones through `core`. Raises `ValueError` for an
    unreadable log.
    """

    def __init__(self, directory: Path, core: PieceStore, classes: Iterable[str], metrics: Metrics) -> None:
        self._core, self._classes, self._metrics = core, tuple(classes), metrics
        self._windows = OpenWindows()
        self._keys = TakenKeys()
        self._places: dict[str, Place] = {}
        self._number = 0
        self._closing: Closing | None = None
        self._shapes: set[tuple[tuple[str, ...], int]] = set()
        self._queue: list[tuple[TakenRecord | None, _Waiter]] = []
        self._pending: dict[str, _Waiter] = {}
        self._writer: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._log = RecordLog(directory / "aggregates.log")
        self._failing = LogEdge(log, "the log of aggregates is written again", error=True)
        self._load(directory)
        metrics.open_windows.set_function(lambda: len(self._windows))

    @property
    def name(self) -> str:
        """The input name of aggregates."""
        return RULES_INPUT

    @property
    def knows_requests(self) -> bool:
        """Whether lines of requests are in the log, whatever the rules now."""
        return bool(self._keys or self._pending)

    @property
    def windows(self) -> OpenWindows:
        """The open windows."""
        return self._windows

    def use(self, rules: Iterable[Rule]) -> None:
        """Apply rules; windows of others close."""
        self._shapes = {(tuple(rule.aggregate), int(rule.window)) for rule in rules if rule.window}
        self._wake.set()

    async def lines_of(self, request: Request) -> int | None:
        """Return a bitmap of a request's aggregated lines, or None. Raises `RefusedError` for
        other content.
        """
        name = name_of(request)
        while (waiter := self._pending.get(name)) is not None:
            await asyncio.wait([waiter])
        return self._keys.lines_of(request)

    def place(self, input_name: str) -> Place | None:
        """Return an input's last piece with aggregated lines."""
        return self._places.get(input_name)

    async def take(
        self, gathered: Gathered, request: Request | None = None, place: Place | None = None
    ) -> None:
        """Add gathered readings of a chunk. Raises `RefusedError`, or `UnknownOutcomeError` if possibly on
        disk.
        """
        at = self._keys.now()
        key = None if request is None else self._keys.record(request, gathered.bitmap, at)
        if len(self._queue) >= MAX_OPEN:
            raise RefusedError(RefusalReason.BUSY, "the log of aggregates is behind")
        await self._commit(TakenRecord(gathered.parts(), key, place, at))

    async def run(self, intake: Intake, stopping: asyncio.Event) -> None:
        """Close and store windows until `stopping`; open ones stay in the log."""
        storing = LogEdge(log, "aggregates are stored again")
        while not stopping.is_set():
            try:
                if self._closing is None and self._due():
                    await self._commit(None)
                if self._closing is not None:
                    await unless(stopping, self._store(self._closing))
                    continue
            except (RefusedError, UnknownOutcomeError) as error:
                storing.begin("aggregates cannot be stored yet", error=str(error))
                await event_within(stopping, getattr(error, "retry_after", None) or _AGAIN_SECONDS)
            else:
                storing.end()
                self._wake.clear()
                look = _SOON_SECONDS if self._windows.crowded else _LOOK_SECONDS
                await unless(stopping, event_within(self._wake, look))

    async def _store(self, closing: Closing) -> None:
        own, rows = self._classes[0], [bytes(line) + b"\n" for _, line in closing.rows]
        payload = b"".join(rows)
        # With what is in it, for numbers come again where the log was lost or is that of a backup.
        piece = Chunk(payload, len(rows), position=f"{closing.number}-{zlib.crc32(payload):08x}")
        stored = await self._core.stored_of(self.name, piece)
        if stored is not None:
            lines: dict[str, list[int]] = {}
            for number, (cls, _) in enumerate(closing.rows):
                if not stored >> number & 1:
                    lines.setdefault(cls if cls in self._classes else own, []).append(number)
            parts = [
                Fragment(cls, b"".join(rows[number] for number in numbers), len(numbers), numbers)
                for cls, numbers in lines.items()
            ]
            await self._core.submit_piece(self.name, own, piece, parts)
        self._closing = None

    def _due(self) -> list[OpenWindow]:
        return self._windows.due(loop_time(), self._shapes, _MOST)

    async def _commit(self, record: TakenRecord | None) -> None:
        """Write a record, or with None close due windows."""
        waiter = asyncio.get_running_loop().create_future()
        self._queue.append((record, waiter))
        if record is not None and record.key is not None:
            self._pending[record.key.name] = waiter
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())
        await asyncio.shield(waiter)

    async def _write(self) -> None:
        """Write waiting records with one sync; they count in file order."""
        while self._queue:
            batch, self._queue = self._queue, []
            taken = [record for record, _ in batch if record is not None]
            failed: Exception | None = None
            try:
                # What is closed is as the records before have left it, so this one is the first.
                closing = [self._closing_of(self._due())] if len(taken) < len(batch) else []
                await self._written([*closing, *taken])
            except Exception as error:  # of any kind: those who wait get it
                failed = error
            for key in (record.key for record in taken):
                if key is not None:
                    del self._pending[key.name]
            for _, waiter in batch:
                if failed is None:
                    waiter.set_result(None)
                else:
                    waiter.set_exception(failed)
                    waiter.exception()  # a sender that went away does not look

    async def _written(self, records: Sequence[TakenRecord | Closing]) -> None:
        """Write records, then apply them. Raises `RefusedError` or `UnknownOutcomeError`."""
        try:
            if self._log.to_rewrite:
                await asyncio.to_thread(self._log.rewrite, self._snapshot())
            await asyncio.to_thread(self._log.append, records)
        except OSError as error:
            self._failing.begin("the log of aggregates cannot be written", error=str(error))
            text = f"the log of aggregates in the state directory cannot be written: {error.strerror}"
            if isinstance(error, UnsureError):
                raise UnknownOutcomeError(text) from None
            raise RefusedError(RefusalReason.UNAVAILABLE, text) from None
        self._failing.end()
        now = loop_time()
        for record in records:
            self._apply(record, now)

    def _closing_of(self, windows: Iterable[OpenWindow]) -> Closing:
        closing = Closing(self._number + 1, [], [])
        for window in windows:
            closing.keys.append(window.key)
            lines = aggregate_lines(window, self._windows.part(window))
            closing.rows += [(window.cls, Raw(line)) for line in lines]
        return closing

    def _apply(self, record: TakenRecord | Closing, now: float) -> None:
        if isinstance(record, Closing):
            self._windows.close(record.keys)
            self._closing, self._number = record, record.number
            return
        for window in record.windows:
            count = window.count
            if self._windows.add(window, now) and self._writer is not None:
                self._metrics.late.labels(window.rule).inc(count)
        if record.key is not None:
            self._keys.add(record.key, now)
        if record.place is not None:
            self._places[record.place.input] = record.place

    def _snapshot(self) -> Snapshot:
        at, windows = self._keys.now(), self._windows
        return Snapshot(
            self._number,
            windows.open(),
            windows.closed(),
            self._keys.records(at),
            list(self._places.values()),
            self._closing,
            at,
            windows.ages(loop_time()),
        )

    def _load(self, directory: Path) -> None:
        now, keys = loop_time(), list[KnownKey]()
        try:
            records = self._log.read()
            self._metrics.damaged_records.inc(self._log.damaged)
            ages = self._keys.ages(getattr(record, "at", None) for record in records)
            for record, age in zip(records, ages, strict=True):
                if isinstance(record, Snapshot):
                    keys += record.keys
                    self._windows.remember(record.closed)
                    self._places = {place.input: place for place in record.places}
                    self._number, self._closing = record.number, record.closing
                    open_for = record.ages or [0.0] * len(record.windows)
                    for window, seconds in zip(record.windows, open_for, strict=True):
                        self._windows.add(window, now - age - seconds)
                    continue
                if isinstance(record, TakenRecord) and record.key is not None:
                    keys.append(record.key)
                self._apply(record, now - age)
        except (OSError, ValueError, LookupError, MsgspecError) as error:
            raise ValueError(
                f"the open windows of aggregated readings cannot be read ({error}); install the release that "
                f"wrote {directory}, or move it away: the readings in windows that are open are then lost"
            ) from None
        self._keys.load(keys)
