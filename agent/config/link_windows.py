"""When a metered link may be open: the windows of a day, by this machine's local time. All but
`local_time` is pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from typing import Final

_WINDOW: Final = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])-([01][0-9]|2[0-3]):([0-5][0-9])\Z")


@dataclass(frozen=True, slots=True)
class Window:
    """From `begin` on, until `end`; one that ends before it begins goes over midnight."""

    begin: time
    end: time

    def holds(self, at: time) -> bool:
        """Whether this time of day is within."""
        if self.begin < self.end:
            return self.begin <= at < self.end
        return at >= self.begin or at < self.end


def parse(text: str) -> Window:
    """Read "22:00-06:00". Raises `ValueError`, also for a window without length."""
    found = _WINDOW.match(text)
    if found is None:
        raise ValueError(f"{text!r} is not a window")
    hours, minutes, until_hours, until_minutes = map(int, found.groups())
    begin, end = time(hours, minutes), time(until_hours, until_minutes)
    if begin == end:
        raise ValueError(f"{text!r} has no length")
    return Window(begin, end)


def local_time() -> datetime:
    """The time by this machine's clock and zone."""
    return datetime.now().astimezone()


class Windows:
    """All windows of a link; without any it is always open."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._windows = [parse(text) for text in texts]

    def open(self, now: datetime) -> bool:
        """Whether the link may be open at this local time."""
        return not self._windows or any(window.holds(now.time()) for window in self._windows)

    def closed(self, now: datetime) -> str:
        """Why the link is closed at this local time, and until when; "" while it is open."""
        if self.open(now):
            return ""
        opens = min((window.begin for window in self._windows), key=lambda begin: _until(now, begin))
        return f"the link is closed until {opens:%H:%M} by its windows"


def _until(now: datetime, at: time) -> timedelta:
    ahead = datetime.combine(now.date(), at) - now.replace(tzinfo=None)
    return ahead if ahead > timedelta() else ahead + timedelta(days=1)
