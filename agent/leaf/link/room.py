"""The room that is left for readings, in the streams and on the disk that they share.

The time to loss: for each class the seconds until its first unconfirmed message is refused or discarded for
lack of room; shown as a gauge and, if the configuration asks for that, as a reading a minute, so that a fleet
can be watched from the table. What
the hub has confirmed does not count, for it is trimmed as soon as its room is needed. A stream that is caught
up, or whose backlog shrinks, loses nothing: infinity. A backlog that stays as it is because the stream
discards the oldest of it grows all the same. At the limit the time is 0, whatever the rates: a stream that
refuses everything does not grow.

The quota: which classes are still stored when the disk runs short. What the classes that go first may still
need is reserved for them, so that bulk cannot push out critical. It holds back what comes through the agent;
what a device publishes into a stream itself is bounded only by that stream's `max_bytes`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import structlog

from agent.base.clock import wall_ns
from agent.base.files import Room
from agent.base.metrics import Metrics
from agent.base.wait import event_within
from agent.config import StreamClass
from agent.contract import AGENT_INPUT, Reading, machine_time
from agent.jetstream import StreamInfo
from agent.leaf.intake import Chunk, Intake, RefusedError, UnknownOutcomeError

TIME_TO_LOSS_METRIC: Final = "petiole_seconds_to_loss"
REPORT_SECONDS: Final = 60.0
FARTHEST: Final = 10 * 365 * 86_400.0
"""Seconds; JSON has no number for infinity, and a reading that were now a number and now a text could not be
compared with a bound."""
MEMORY_SECONDS: Final = 60.0
"""The time constant of the rates: growth counts for less by a factor of e each such time."""
CAUGHT_UP_SECONDS: Final = 30.0
"""A backlog of what arrived in this time is in transit between two announcements; it does not grow."""
BATCH_BYTES: Final = 256 * 1024
"""A stream with less room than a batch has none; of a small stream, less than a twentieth."""
REFUSED_SECONDS: Final = 60.0
"""For so long after a refusal the time is 0, unless the stream was trimmed: what limits it may be another
limit than those that are known here. A sender that was asked to wait is back by then."""
ALL_HELD: Final = "every class is held back"
FULL: Final = (
    "its stream has no room for a further batch: readings are refused, and their senders must keep them, "
    "until the hub has taken some; restore the link, or give the class more room (max_bytes)"
)
_MIB: Final = 2**20

log = structlog.get_logger("link")


class _Rate:
    """Bytes a second, as a moving average."""

    def __init__(self) -> None:
        self.value: float | None = None

    def add(self, bytes_: float, seconds: float) -> None:
        """Add what flowed in so many seconds."""
        rate = bytes_ / seconds
        if self.value is None:
            self.value = rate
        else:
            self.value += (rate - self.value) * -math.expm1(-seconds / MEMORY_SECONDS)


class _Class:
    """The stream of one class at the last look."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.created = ""
        self.at = self.unconfirmed = self.held = self.size = 0.0
        self.first = self.last = 0
        self.wanted = 0
        """Bytes of the message that was refused last, 0 if none was."""
        self.refused_at = -math.inf
        self.growth, self.inflow = _Rate(), _Rate()

    def observe(self, info: StreamInfo, confirmed: int, now: float) -> None:
        """Measure the rates up to now."""
        size = info.bytes / info.messages if info.messages else 0.0
        unconfirmed = min(float(info.bytes), size * max(0, info.last - max(confirmed, info.first - 1)))
        discarded = size * max(0, info.first - 1 - max(confirmed, self.first - 1))
        if info.created != self.created or info.last < self.last:
            self.growth, self.inflow = _Rate(), _Rate()
        elif now > self.at:
            self.growth.add(unconfirmed + discarded - self.unconfirmed, now - self.at)
            self.inflow.add(size * (info.last - self.last), now - self.at)
        self.created, self.first, self.last, self.at = info.created, info.first, info.last, now
        self.unconfirmed, self.held, self.size = unconfirmed, float(info.bytes), size
        if self.held + self.wanted <= self.max_bytes:
            self.wanted = 0

    def is_at_limit(self, now: float) -> bool:
        """Whether a batch has no room, or a message was refused that would still have none."""
        batch = max(self.size, min(BATCH_BYTES, self.max_bytes / 20))
        full = self.unconfirmed > 0 and self.max_bytes - self.unconfirmed < batch
        return full or self.wanted > 0 or now - self.refused_at < REFUSED_SECONDS

    @property
    def grows(self) -> float:
        """Bytes a second by which the backlog grows; 0 while it does not."""
        if self.unconfirmed <= (self.inflow.value or 0.0) * CAUGHT_UP_SECONDS and self._flows:
            return 0.0
        return max(0.0, self.growth.value or 0.0)

    @property
    def _flows(self) -> bool:
        return (self.growth.value or 0.0) < 0.5 * (self.inflow.value or 0.0)


class TimeToLoss:
    """The classes of one leaf, by name with their `max_bytes`; `max_file_store` is what their server may use
    on disk, None if that is unknown."""

    def __init__(self, classes: Mapping[str, int], max_file_store: int | None = None) -> None:
        self._classes = {name: _Class(max_bytes) for name, max_bytes in classes.items()}
        self._max_file_store = max_file_store
        self.seconds = dict.fromkeys(classes, math.inf)
        self.full = set[str]()
        """Classes whose stream has no room for a further batch, as of the last look."""
        self.refusing: Callable[[str], str | None] = lambda _cls: None
        """Why a class takes nothing in now for another reason than its stream, None if there is none."""

    def left(self, cls: str) -> float:
        """Seconds until a class loses a reading, as of now: 0 where it takes nothing in."""
        return self.seconds[cls] if self.refusing(cls) is None else 0.0

    def observe(
        self, cls: str, info: StreamInfo, confirmed: int, now: float, free: int | None = None
    ) -> float:
        """Seconds until the class loses a reading, from its stream, the sequence up to which the hub holds
        everything (0 if unknown), the time on a monotonic clock and the bytes that are `free` on the disk of
        the store. Infinity at the first look at a stream that has room, since a rate takes two."""
        stream = self._classes[cls]
        stream.observe(info, confirmed, now)
        if stream.is_at_limit(now):
            self.full.add(cls)
            self.seconds[cls] = 0.0
            return 0.0
        self.full.discard(cls)
        limits = [(stream.max_bytes - stream.unconfirmed, stream.grows)]
        shared = self._shared_room(free)
        if shared is not None and shared < stream.size and stream.unconfirmed > 0:
            self.seconds[cls] = 0.0
            return 0.0
        if shared is not None:
            limits.append((shared, sum(other.grows for other in self._classes.values())))
        self.seconds[cls] = min(
            (max(0.0, room) / rate for room, rate in limits if rate > 0.0 and stream.grows > 0.0),
            default=math.inf,
        )
        return self.seconds[cls]

    def refused(self, cls: str, size: int, now: float) -> None:
        """The stream of a class had no room for a message of `size` bytes."""
        stream = self._classes[cls]
        stream.wanted, stream.refused_at = max(stream.wanted, size), now
        self.full.add(cls)
        self.seconds[cls] = 0.0

    def trimmed(self, cls: str) -> None:
        """The stream of a class has room again; the next look says how much."""
        self._classes[cls].refused_at = -math.inf

    def held(self, cls: str) -> float:
        """The bytes of a class's stream at the last look."""
        return self._classes[cls].held

    def last(self, cls: str) -> int:
        """The last sequence of a class at the last look."""
        return self._classes[cls].last

    def _shared_room(self, free: int | None) -> float | None:
        held = sum(stream.held for stream in self._classes.values())
        unconfirmed = sum(stream.unconfirmed for stream in self._classes.values())
        rooms = [self._max_file_store - unconfirmed] if self._max_file_store is not None else []
        rooms += [free + held - unconfirmed] if free is not None else []
        return min(rooms, default=None)


class TimeToLossReport:
    """To the core an input named `agent`. Its readings go into the class `cls`, each with the tag `class` of
    the class that it is about; at most `FARTHEST`. It reports nothing while nothing moves: an idle leaf stays
    idle."""

    name = AGENT_INPUT

    def __init__(
        self, time_to_loss: TimeToLoss, cls: str, metrics: Metrics, seconds: float = REPORT_SECONDS
    ) -> None:
        self._time_to_loss, self._cls, self._seconds = time_to_loss, cls, seconds
        self._reported = 0
        for name in time_to_loss.seconds:
            metrics.seconds_to_loss.labels(name).set_function(partial(time_to_loss.left, name))

    async def run(self, intake: Intake, stopping: asyncio.Event) -> None:
        """Report each minute in which something moved, until `stopping` is set."""
        while not stopping.is_set():
            if not await event_within(stopping, self._seconds):
                await self._report(intake)

    async def _report(self, intake: Intake) -> None:
        last = sum(self._time_to_loss.last(name) for name in self._time_to_loss.seconds)
        # In such a minute each class's ledger adds a record, and this report a batch: they must not trigger
        # the next report.
        moved = last - self._reported > len(self._time_to_loss.seconds) + 1
        self._reported = last
        if not moved:
            return
        now = machine_time(wall_ns())
        lines = [
            Reading(
                TIME_TO_LOSS_METRIC,
                min(self._time_to_loss.left(name), FARTHEST),
                ts=now,
                tags={"class": name},
            ).encode()
            for name in self._time_to_loss.seconds
        ]
        try:
            await intake.submit(self.name, self._cls, Chunk(b"\n".join(lines) + b"\n", len(lines)))
        except (RefusedError, UnknownOutcomeError) as error:
            log.debug("time to loss not reported", error=str(error))


class DiskQuota:
    """The classes of a leaf. `held` returns the bytes of a class's stream at the last look, `room` what is
    known of the disk that all streams share."""

    def __init__(
        self,
        classes: Mapping[str, StreamClass],
        held: Callable[[str], float],
        room: Callable[[], Room | None],
    ) -> None:
        self._classes, self._held, self._room = classes, held, room
        self._judged: Room | None = None
        self._refused: dict[str, str] = {}

    def refusal(self, cls: str) -> str | None:
        """Why a class is not stored now, None if it is."""
        room = self._room()
        if room is not self._judged:
            self._judged = room
            self._judge(room)
        return self._refused.get(cls)

    @property
    def short(self) -> bool:
        """Whether a class is held back."""
        return bool(self._refused)

    def _judge(self, room: Room | None) -> None:
        before, self._refused = self._refused, {}
        for name, cls in self._classes.items():
            if room is None or not (first := self._before(cls)):
                continue
            needed = sum(max(0, class_.max_bytes - int(self._held(class_.name))) for class_ in first)
            # Files are larger than what they hold, and exist twice for a moment; a class that is held back
            # resumes only with more room, so that it does not flap.
            spare = room.reserve * (2 if name in before else 1)
            if room.free - room.reserve < needed + spare:
                self._refused[name] = _sentence(name, first, needed)
        for name in self._refused.keys() - before.keys():
            log.warning("class held back", **{"class": name}, state=self._refused[name])
        for name in before.keys() - self._refused.keys():
            log.info("class stored again", **{"class": name})

    def _before(self, cls: StreamClass) -> list[StreamClass]:
        return [class_ for class_ in self._classes.values() if class_.priority < cls.priority]


def _sentence(name: str, first: list[StreamClass], needed: int) -> str:
    names = ", ".join(sorted(class_.name for class_ in first))
    return (
        f"the disk of the server's store is short: the {needed / _MIB:.0f} MiB that class {names} may still "
        f"need are reserved for it; class {name} is stored again when there is more room: free some, or "
        "reduce max_bytes of the others"
    )
