"""Shares sampling at intervals among inputs. A refused sample is dropped and counted; samples never queue."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from fnmatch import translate
from typing import Final

import msgspec
from structlog.typing import FilteringBoundLogger

from agent.base.logs import LogEdge
from agent.base.wait import event_within
from agent.leaf.intake import Chunk, Intake, RefusedError, UnknownOutcomeError

MIN_INTERVAL: Final = 0.1
MAX_INTERVAL: Final = 86_400.0
_MAX_NAMES: Final = 10_000
"""Names kept in memory."""
_ENCODER: Final = msgspec.json.Encoder()


class SampleStore:
    """Submits samples of input `name` for class `cls`."""

    def __init__(self, name: str, cls: str, log: FilteringBoundLogger) -> None:
        self._name, self._class = name, cls
        self._storing = LogEdge(log, "samples are stored again")

    async def store(self, chunk: Chunk, intake: Intake) -> bool:
        """Store a sample or part; False when dropped or unknown."""
        try:
            await intake.submit(self._name, self._class, chunk)
        except RefusedError as refusal:
            self._storing.begin(f"samples are dropped: {refusal}")
            return False
        except UnknownOutcomeError as error:
            self._storing.begin(str(error))
            return False
        self._storing.end()
        return True


class SampleLine(msgspec.Struct, omit_defaults=True):
    """A stored reading; `ts` is RFC 3339 or epoch seconds."""

    ts: str | float
    device: str
    metric: str
    value: float
    tags: Mapping[str, str] = {}


def encode(lines: Iterable[SampleLine]) -> bytes:
    return _ENCODER.encode_lines(lines)


async def turns(interval: float, stopping: asyncio.Event) -> AsyncIterator[None]:
    """Yield at once and after each interval until `stopping`."""
    loop = asyncio.get_running_loop()
    due = loop.time()
    while not stopping.is_set():
        yield
        due = next_due(due, loop.time(), interval)
        await event_within(stopping, due - loop.time())


def next_due(due: float, now: float, interval: float) -> float:
    """Return the first time after `now` at whole intervals from `due`."""
    return due + interval * max(1, math.floor((now - due) / interval) + 1)


def check_interval(interval: float) -> str | None:
    """Return an interval's fault or None."""
    if MIN_INTERVAL <= interval <= MAX_INTERVAL:
        return None
    return f"interval is {interval} s; take 100ms to 1d"


class Names:
    """Selects names by the globs `keep` (empty: all) and `drop`."""

    def __init__(self, keep: Sequence[str], drop: Sequence[str]) -> None:
        self._globs = tuple(keep), tuple(drop)
        self._keep = _any_of(keep or ["*"])
        self._drop = _any_of(drop)
        self._seen: dict[str, bool] = {}

    def wants(self, name: str) -> bool:
        if (wanted := self._seen.get(name)) is None:
            wanted = self._keep.match(name) is not None and self._drop.match(name) is None
            if len(self._seen) < _MAX_NAMES:
                self._seen[name] = wanted
        return wanted

    def unused(self) -> tuple[list[str], list[str]]:
        """Return globs of `keep` and `drop` that never matched."""
        keep, drop = (
            [glob for glob in globs if not any(map(_any_of([glob]).match, self._seen))]
            for globs in self._globs
        )
        return keep, drop


def _any_of(globs: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, globs)) or r"(?!)")
