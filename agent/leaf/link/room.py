"""Computes the space left for readings in streams and on disk.

Time to loss: seconds until a class's first unconfirmed message is refused or discarded, as a gauge and
optionally a reading a minute. Confirmed messages do not count, as they are trimmed. Infinity without growing
backlog; a discarding backlog counts as growing; 0 at the limit.

Quota: on a short disk, classes with priority keep a reserve. It applies to the agent; direct messages are
bounded by `max_bytes` only.
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
"""Seconds for infinity, which JSON lacks."""
MEMORY_SECONDS: Final = 60.0
"""Time constant of the rates."""
CAUGHT_UP_SECONDS: Final = 30.0
"""Arrivals within this time count as in transit."""
BATCH_BYTES: Final = 256 * 1024
"""Free bytes below which a stream is full, or a twentieth of a small one."""
REFUSED_SECONDS: Final = 60.0
"""Time of 0 after a refusal without trim, for unknown limits; longer than senders wait."""
ALL_HELD: Final = "every class is held back"
FULL: Final = (
    "its stream has no room for a further batch: readings are refused, and their senders must keep them, "
    "until the hub has taken some; restore the link, or give the class more room (max_bytes)"
)
_MIB: Final = 2**20

log = structlog.get_logger("link")


class _Rate:
    """Bytes a second as moving average."""

    def __init__(self) -> None:
        self.value: float | None = None

    def add(self, bytes_: float, seconds: float) -> None:
        rate = bytes_ / seconds
        if self.value is None:
            self.value = rate
        else:
            self.value += (rate - self.value) * -math.expm1(-seconds / MEMORY_SECONDS)


class _Class:
    """A class's stream at the last look."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.created = ""
        self.at = self.unconfirmed = self.held = self.size = 0.0
        self.first = self.last = 0
        self.wanted = 0
        """Bytes of the largest refused message, 0 once the stream has room for it."""
        self.refused_at = -math.inf
        self.growth, self.inflow = _Rate(), _Rate()

    def observe(self, info: StreamInfo, confirmed: int, now: float) -> None:
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
        """Tell whether a batch or a refused message does not fit, or a refusal is less than `REFUSED_SECONDS`
        old.
        """
        batch = max(self.size, min(BATCH_BYTES, self.max_bytes / 20))
        full = self.unconfirmed > 0 and self.max_bytes - self.unconfirmed < batch
        return full or self.wanted > 0 or now - self.refused_at < REFUSED_SECONDS

    @property
    def grows(self) -> float:
        """Return the backlog's growth in bytes a second, at least 0."""
        if self.unconfirmed <= (self.inflow.value or 0.0) * CAUGHT_UP_SECONDS and self._flows:
            return 0.0
        return max(0.0, self.growth.value or 0.0)

    @property
    def _flows(self) -> bool:
        return (self.growth.value or 0.0) < 0.5 * (self.inflow.value or 0.0)


class TimeToLoss:
    """Computes times for classes with `max_bytes`; `max_file_store` is the server's limit, None
    if unknown.
    """

    def __init__(self, classes: Mapping[str, int], max_file_store: int | None = None) -> None:
        self._classes = {name: _Class(max_bytes) for name, max_bytes in classes.items()}
        self._max_file_store = max_file_store
        self.seconds = dict.fromkeys(classes, math.inf)
        self.full = set[str]()
        """Full classes at the last look."""
        self.refusing: Callable[[str], str | None] = lambda _cls: None
        """Other reasons for refusal by class."""

    def left(self, cls: str) -> float:
        """Return seconds to a loss; 0 if the class accepts nothing."""
        return self.seconds[cls] if self.refusing(cls) is None else 0.0

    def observe(
        self, cls: str, info: StreamInfo, confirmed: int, now: float, free: int | None = None
    ) -> float:
        """Return seconds to a loss from stream, confirmed sequence (0: unknown), monotonic time and `free`
        disk bytes.

        Infinity at a first look with space, since a rate needs two looks.
        """
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
        """Note a message of `size` bytes without space."""
        stream = self._classes[cls]
        stream.wanted, stream.refused_at = max(stream.wanted, size), now
        self.full.add(cls)
        self.seconds[cls] = 0.0

    def trimmed(self, cls: str) -> None:
        """Note a trim, which ends the time after a refusal."""
        self._classes[cls].refused_at = -math.inf

    def held(self, cls: str) -> float:
        """Return a class's bytes at the last look."""
        return self._classes[cls].held

    def last(self, cls: str) -> int:
        """Return a class's last sequence at the last look."""
        return self._classes[cls].last

    def _shared_room(self, free: int | None) -> float | None:
        held = sum(stream.held for stream in self._classes.values())
        unconfirmed = sum(stream.unconfirmed for stream in self._classes.values())
        rooms = [self._max_file_store - unconfirmed] if self._max_file_store is not None else []
        rooms += [free + held - unconfirmed] if free is not None else []
        return min(rooms, default=None)


class TimeToLossReport:
    """An input `agent` that stores times in class `cls` with tag `class`, at most `FARTHEST`, only while data
    moves.
    """

    name = AGENT_INPUT

    def __init__(
        self, time_to_loss: TimeToLoss, cls: str, metrics: Metrics, seconds: float = REPORT_SECONDS
    ) -> None:
        self._time_to_loss, self._cls, self._seconds = time_to_loss, cls, seconds
        self._reported = 0
        for name in time_to_loss.seconds:
            metrics.seconds_to_loss.labels(name).set_function(partial(time_to_loss.left, name))

    async def run(self, intake: Intake, stopping: asyncio.Event) -> None:
        """Report each minute with movement until `stopping`."""
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
    """Disk shares of classes. `held` returns a stream's bytes, `room` the disk's space."""

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
        """Return why a class is not stored, or None."""
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
