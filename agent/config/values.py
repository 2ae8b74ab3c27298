"""Parses durations, sizes, addresses and daily windows, and defines problems. Pure except `local_time`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, time, timedelta
from typing import Annotated, Any, ClassVar, Final, Self
from urllib.parse import urlsplit

from msgspec import Meta, Struct

from agent import contract
from agent.base.supervisor import ConditionError

_TIMES: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZES: Final = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_SCHEMES: Final = ("nats-leaf", "nats", "tls", "ws", "wss")
_YEAR: Final = 365 * 86400.0
_SHORTEST_REST: Final = 10.0
_RUN_IT: Final = 'remove it, or let the agent run the server: server = "embedded"'
_QUANTITY: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?([A-Za-z]+)\Z")

Positive = Annotated[int, Meta(ge=1)]
FILES: Final = Meta(extra={"names": "files"})
"""Marks texts that are paths or patterns."""


class Seconds(float):
    """A duration such as "100ms", "20s", "2m", "1h" or "1d", up to a year."""

    _least: ClassVar = math.nextafter(0, 1)
    _most: ClassVar = _YEAR

    @classmethod
    def parse(cls, value: object) -> Self:
        """Parse a value. Raises `ValueError`."""
        seconds = _quantity(value, _TIMES)
        if not cls._least <= seconds <= cls._most:
            raise ValueError("out of range")
        return cls(seconds)


class Linger(Seconds):
    """A batch's linger; "0s" for none, up to 5 s (half of a chunk's patience)."""

    _least, _most = 0.0, 5.0


class RestAfter(Seconds):
    """Time before a class rests, at least 10 s because rests change hub streams; "0s" for never."""

    _least = 0.0

    @classmethod
    def parse(cls, value: object) -> Self:
        """Parse a value. Raises `ValueError`."""
        seconds = super().parse(value)
        if 0 < seconds < _SHORTEST_REST:
            raise ValueError("out of range")
        return seconds


class SyncInterval(Seconds):
    """Sync interval up to a minute; "always" (0): before acks."""

    _least, _most = 0.1, 60.0

    @classmethod
    def parse(cls, value: object) -> Self:
        """Parse a value. Raises `ValueError`."""
        return cls(0.0) if value == "always" else super().parse(value)


class Size(int):
    """A size such as "16MiB", "1GiB", "500kB" or an integer; at least 1."""

    @classmethod
    def parse(cls, value: object) -> Size:
        """Parse a value. Raises `ValueError`."""
        if isinstance(value, int) and not isinstance(value, bool):
            size = value
        else:
            size = int(_quantity(value, _SIZES))
        if not 1 <= size <= contract.MAX_INT:
            raise ValueError("out of range")
        return cls(size)


def _quantity(value: object, units: Mapping[str, float]) -> float:
    match = _QUANTITY.match(value) if isinstance(value, str) else None
    if match is None or match[2] not in units:
        raise ValueError("not a number with a unit")
    return float(match[1]) * units[match[2]]


def listen_address(text: str) -> tuple[str, int]:
    """Parse `host:port`. Raises `ValueError`."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or not 0 <= int(port) <= 65535:
        raise ValueError(f"{text!r} is not host:port")
    host = host.removeprefix("[").removesuffix("]")
    if not host.isprintable() or not _is_name(host):
        raise ValueError(f"{text!r} is not host:port")
    return host, int(port)


def _is_name(host: str) -> bool:
    """Tell whether a resolver accepts it; `socket.getaddrinfo` raises `UnicodeError` for bad labels."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def is_hub_url(text: str) -> bool:
    """Tell whether a leaf could dial this address."""
    try:
        parts = urlsplit(text)
        return parts.scheme in _SCHEMES and bool(parts.hostname) and parts.port is not None
    except ValueError:
        return False


_WINDOW: Final = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])-([01][0-9]|2[0-3]):([0-5][0-9])\Z")


class Window(Struct, frozen=True):
    """From `begin` to `end`, possibly over midnight."""

    begin: time
    end: time

    @classmethod
    def parse(cls, text: str) -> Window:
        """Parse "22:00-06:00". Raises `ValueError`, also for an empty window."""
        found = _WINDOW.match(text)
        if found is None:
            raise ValueError(f"{text!r} is not a window")
        hours, minutes, until_hours, until_minutes = map(int, found.groups())
        begin, end = time(hours, minutes), time(until_hours, until_minutes)
        if begin == end:
            raise ValueError(f"{text!r} has no length")
        return cls(begin, end)

    def holds(self, at: time) -> bool:
        """Tell whether this time is inside."""
        if self.begin < self.end:
            return self.begin <= at < self.end
        return at >= self.begin or at < self.end


def local_time() -> datetime:
    """Return the local time."""
    return datetime.now().astimezone()


class Windows:
    """A link's windows; always open if empty."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._windows = [Window.parse(text) for text in texts]

    def open(self, now: datetime) -> bool:
        """Tell whether the link may be open."""
        return not self._windows or any(window.holds(now.time()) for window in self._windows)

    def closed(self, now: datetime) -> str:
        """Return why the link is closed and until when; "" if open."""
        if self.open(now):
            return ""
        opens = min((window.begin for window in self._windows), key=lambda begin: _until(now, begin))
        return f"the link is closed until {opens:%H:%M} by its windows"


def _until(now: datetime, at: time) -> timedelta:
    ahead = datetime.combine(now.date(), at) - now.replace(tzinfo=None)
    return ahead if ahead > timedelta() else ahead + timedelta(days=1)


class Problem(Struct, frozen=True):
    """One configuration problem."""

    key: str
    """Such as `leaf[2].domain`."""
    stood: str
    """The value and its fault."""
    remedy: str

    def __str__(self) -> str:
        return f"{self.key}: {self.stood}; {self.remedy}"


class UnusableTypeError(Exception):
    """An unusable input type; `stood` has type and reason."""

    def __init__(self, stood: str, remedy: str) -> None:
        super().__init__(f"{stood}; {remedy}")
        self.stood, self.remedy = stood, remedy


class ConfigError(ConditionError):
    """A wrong configuration: `problems` are sentences, `found` by key, `inputs` the readable options."""

    def __init__(
        self, problems: list[str], found: Sequence[Problem] = (), inputs: Sequence[Any] = ()
    ) -> None:
        super().__init__("\n".join(problems))
        self.problems, self.found, self.inputs = problems, found, inputs

    @classmethod
    def of(cls, found: Sequence[Problem], inputs: Sequence[Any] = ()) -> ConfigError:
        return cls([str(problem) for problem in found], found, inputs)


def numbered(rows: Sequence[Any]) -> Iterator[tuple[int, Any]]:
    """Yield readable tables with numbers from 1."""
    return ((number, row) for number, row in enumerate(rows, 1) if row is not None)


def contract_problem(key: str, rule: Callable[[str], Any], value: str, remedy: str) -> Iterator[Problem]:
    """Yield the problem of a value against a contract rule."""
    try:
        rule(value)
    except contract.ContractError as error:
        yield Problem(key, str(error), remedy)


def duplicate(key: str, name: str, seen: set[str]) -> Iterator[Problem]:
    """Yield the problem of a repeated name, and add it to `seen`."""
    if name in seen:
        yield Problem(key, f'"{name}" is there twice', "let each have a name of its own")
    seen.add(name)


def unknown_class(key: str, name: str, classes: Collection[str]) -> Iterator[Problem]:
    """Yield the problem of an undeclared `class`."""
    if name not in classes:
        remedy = f"declare it with [[class]], or take one of: {', '.join(sorted(classes))}"
        yield Problem(f"{key}.class", f'there is no class "{name}"', remedy)


def embedded_only(key: str, remedy: str = _RUN_IT) -> Problem:
    """Return the problem of a key only for embedded servers."""
    return Problem(key, 'is for an embedded server only, and nats.server is "external"', remedy)


def reserved_domain(key: str, domain: str, remedy: str) -> Problem:
    """Return the problem of a reserved domain."""
    whose = "the hub's own" if domain == contract.HUB_DOMAIN else "the name of a part of petiole itself"
    return Problem(key, f'"{domain}" is {whose}', remedy)
