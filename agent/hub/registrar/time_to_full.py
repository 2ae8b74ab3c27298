"""Estimates when aggregates are full without further purges. Pure. Full ones lose nothing, but leaves fill
up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from agent.base.logs import NO_THREAT, time_text
from agent.hub.registrar.aggregate import is_full
from agent.jetstream import StreamInfo

MEMORY_SECONDS: Final = 600.0
"""Time constant of rates."""
COMMIT_SECONDS: Final = 3600.0
"""Silence of `ingest` that is reported."""


class _Stream:
    """An aggregate; rate in bytes a second."""

    def __init__(self, began: float) -> None:
        self.at = self.began = began
        self.created = ""
        self.last = 0
        self.size = 0.0
        self.room = math.inf
        self.rate = 0.0
        self.committed: float | None = None

    def see(self, info: StreamInfo, now: float) -> None:
        if info.messages:
            self.size = info.bytes / info.messages
        if info.created != self.created or info.last < self.last:
            self.rate = 0.0
        elif now > self.at:
            part = -math.expm1(-(now - self.at) / MEMORY_SECONDS)
            self.rate += (self.size * (info.last - self.last) / (now - self.at) - self.rate) * part
        self.created, self.last, self.at = info.created, info.last, now
        limit = info.config.get("max_bytes", -1)
        self.room = 0.0 if is_full(info) else math.inf if limit <= 0 else max(0.0, limit - info.bytes)


class TimeToFull:
    """All aggregates; monotonic seconds."""

    def __init__(self) -> None:
        self._streams: dict[str, _Stream] = {}

    def see(self, infos: Iterable[StreamInfo], now: float) -> None:
        for info in infos:
            self._streams.setdefault(info.name, _Stream(now)).see(info, now)

    def committed(self, name: str, now: float) -> None:
        """Note a commit."""
        self._streams.setdefault(name, _Stream(now)).committed = now

    def names(self) -> list[str]:
        return list(self._streams)

    def seconds(self, name: str, free: int | None) -> float:
        """Return seconds to full by limit or `free` disk bytes (None: unknown); infinity without inflow."""
        stream = self._streams[name]
        if stream.room == 0.0 or (free is not None and free <= 0):
            return 0.0
        rates = sum(each.rate for each in self._streams.values())
        ways = [(stream.room, stream.rate)] + ([] if free is None else [(free, rates)])
        return min((room / rate for room, rate in ways if rate > 0.0), default=math.inf)

    def since_commit(self, name: str, now: float) -> float:
        """Return seconds since a commit, or since the start."""
        stream = self._streams[name]
        return now - (stream.began if stream.committed is None else stream.committed)

    def words(self, name: str, free: int | None, now: float) -> str:
        """Return it in a sentence."""
        seconds, since = self.seconds(name, free), self.since_commit(name, now)
        if seconds == 0.0:
            full = "there is no room left, so the leaves wait: run ingest, or give the disk room"
        elif seconds >= NO_THREAT:
            full = "hardly anything comes in, so it does not fill"
        else:
            full = f"full in about {time_text(seconds)} if nothing is committed"
        if self._streams[name].committed is None:
            return f"Spark has not committed since this agent started, {time_text(since)} ago; {full}"
        if since >= COMMIT_SECONDS:
            return f"Spark has not committed for {time_text(since)}; {full}"
        return f"Spark committed {time_text(since)} ago; {full}"
