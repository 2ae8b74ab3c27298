"""Aggregates readings in windows. Pure; times come from the caller.

A window closes when its series has a reading `late` seconds after its end, or its length plus `late` passed
since opening. Later readings reopen it as a further part. Sums are exact, so order does not matter.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple

from msgspec import Struct

MAX_OPEN: Final = 10_000
"""Most open windows, about 20 MB."""
MAX_CLOSED: Final = 20_000
"""Remembered closed windows, to number further parts."""

_NEVER: Final = -1e18
"""Before every `ts`."""

Number = int | float
Shape = tuple[tuple[str, ...], int]
"""A rule's aggregates and window length in seconds."""


class WindowPlan(NamedTuple):
    """A rule's aggregates over windows of `length` seconds that wait `late` seconds."""

    rule: str
    functions: tuple[str, ...]
    length: int
    late: float

    @property
    def shape(self) -> Shape:
        """Distinguishes its windows from another rule's."""
        return self.functions, self.length


class OpenWindow(Struct, array_like=True):
    """A series' window, or a chunk's addition to it."""

    series: bytes
    begin: int
    """In seconds since 1970."""
    rule: str
    functions: tuple[str, ...]
    length: int
    """In seconds, as `late`."""
    late: float
    cls: str
    metric: str
    device: str
    tags: str
    """As in the lines."""
    offset: str
    """UTC offset of each `ts`."""
    last_ts: float = _NEVER
    last: Number | str | bool = 0
    """Value with the latest `ts`."""
    count: int = 0
    """All readings."""
    numbers: int = 0
    """Numeric readings, covered by `total`, `least` and `most`."""
    total: str = "0/1"
    """Exact fraction in hexadecimal."""
    least: Number = 0
    most: Number = 0

    @property
    def shape(self) -> Shape:
        return self.functions, self.length

    @property
    def key(self) -> bytes:
        """Return the window's key."""
        return self.series + self.begin.to_bytes(8, "big", signed=True)

    def merge(self, other: OpenWindow) -> None:
        """Merge later readings."""
        if other.last_ts >= self.last_ts:
            self.last_ts, self.last = other.last_ts, other.last
        if other.numbers:
            bounds = (self, other) if self.numbers else (other,)
            self.least = min(window.least for window in bounds)
            self.most = max(window.most for window in bounds)
            self.total = _plus(self.total, other.total)
        self.numbers += other.numbers
        self.count += other.count

    def values(self) -> dict[str, Any]:
        """Return aggregates by function; numeric ones only with numbers."""
        found: dict[str, Any] = {"last": self.last, "count": self.count}
        if self.numbers:
            over, under = _fraction(self.total)
            # A quotient of whole numbers is rounded once, and never too large for a float in between.
            found |= {"mean": over / (under * self.numbers), "min": self.least, "max": self.most}
        return {name: found[name] for name in self.functions if name in found}


def added(window: OpenWindow, readings: Sequence[tuple[float, Number | str | bool]]) -> OpenWindow:
    """Return a named window with these (`ts`, value) readings."""
    for ts, value in readings:
        if ts >= window.last_ts:
            window.last_ts, window.last = ts, value
    window.count = len(readings)
    numbers = [value for _, value in readings if not isinstance(value, bool | str)]
    if numbers:
        ratios = [value.as_integer_ratio() for value in numbers]
        finest = max(under for _, under in ratios)
        window.total = f"{sum(over * (finest // under) for over, under in ratios):x}/{finest:x}"
        window.least, window.most, window.numbers = min(numbers), max(numbers), len(numbers)
    return window


def _fraction(text: str) -> tuple[int, int]:
    over, _, under = text.partition("/")
    return int(over, 16), int(under, 16)


def _plus(first: str, second: str) -> str:
    """Add two fractions with power-of-two denominators."""
    (over, under), (other, finer) = sorted(map(_fraction, (first, second)), key=lambda fraction: fraction[1])
    return f"{over * (finer // under) + other:x}/{finer:x}"


class OpenWindows:
    """Open and recently closed windows of all series. Monotonic seconds."""

    def __init__(self, max_open: int = MAX_OPEN, max_closed: int = MAX_CLOSED) -> None:
        self._max_open, self._max_closed = max_open, max_closed
        self._open: dict[bytes, dict[int, OpenWindow]] = {}
        self._opened: dict[bytes, float] = {}
        self._closed: OrderedDict[bytes, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._opened)

    @property
    def crowded(self) -> bool:
        """Whether half of the limit is open."""
        return 2 * len(self) > self._max_open

    def takes(self, series: bytes, begin: int, more: int) -> bool:
        """Tell whether a window is open or may open beside `more` windows."""
        return len(self) + more < self._max_open or begin in self._open.get(series, ())

    def add(self, part: OpenWindow, now: float) -> bool:
        """Add readings; returns whether the window was closed before."""
        windows = self._open.setdefault(part.series, {})
        if part.begin in windows:
            windows[part.begin].merge(part)
        else:
            windows[part.begin] = part
            self._opened[part.key] = now
        return part.key in self._closed

    def due(self, now: float, shapes: Collection[Shape], most: int) -> list[OpenWindow]:
        """Return the earliest `most` windows to close; includes all of rules not in `shapes`."""
        found = []
        for windows in self._open.values():
            newest = max(window.last_ts for window in windows.values())
            for window in windows.values():
                behind = window.begin + window.length + window.late <= newest
                # Opened again it would be closed at each look, as long as its series has a `ts` far ahead.
                late = behind and window.key not in self._closed
                waited = self._opened[window.key] + window.length + window.late <= now
                if late or waited or window.shape not in shapes:
                    found.append(window)
        return sorted(found, key=lambda window: window.begin)[:most]

    def part(self, window: OpenWindow) -> int:
        """Return the part number of a window, from 1."""
        return self._closed.get(window.key, 0) + 1

    def close(self, keys: Iterable[bytes]) -> None:
        """Close windows; ignores unknown ones from damaged records."""
        for key in keys:
            series, begin = key[:-8], int.from_bytes(key[-8:], "big", signed=True)
            windows = self._open.get(series, {})
            if windows.pop(begin, None) is not None:
                del self._opened[key]
                if not windows:
                    del self._open[series]
            self._closed[key] = self._closed.pop(key, 0) + 1
        self._forget()

    def remember(self, parts: Iterable[tuple[bytes, int]]) -> None:
        """Load closed windows with their parts."""
        self._closed.update(parts)
        self._forget()

    def open(self) -> list[OpenWindow]:
        return [window for windows in self._open.values() for window in windows.values()]

    def ages(self, now: float) -> list[float]:
        """Return how long each open window is open, in seconds."""
        return [now - self._opened[window.key] for window in self.open()]

    def closed(self) -> list[tuple[bytes, int]]:
        """Return recently closed windows for `remember`."""
        return list(self._closed.items())

    def _forget(self) -> None:
        while len(self._closed) > self._max_closed:
            self._closed.popitem(last=False)
