"""Recognises repeated push requests by idempotency key. Pure; times come from the caller.

A key is in flight until settled, then known for ten minutes. A request may go to several classes, so keys are
noted per class and looked up in all. Keys are per scope: input, subject or peer. Another content under a key
is refused. At the limit new keys are refused, because forgetting one could store a repeat twice.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from itertools import islice

from agent.base.clock import Instant
from agent.contract import Request, divide_mark, part_count
from agent.leaf.intake import RefusalReason, RefusedError, UnknownOutcomeError
from agent.leaf.publish.settlement import Settlement

KNOWN_SECONDS = 600.0
MAX_KEYS = 500_000

Key = tuple[str, str]
"""Class, and `scope:key`."""


def name_of(request: Request) -> str:
    """Return scope and key of a request."""
    return f"{request.scope}:{request.key}"


def key_reused(request: Request) -> RefusedError:
    """Return the refusal of a key with other content."""
    return RefusedError(
        RefusalReason.KEY_REUSED,
        f"the key {request.key} was used within ten minutes for another request; use a new key",
    )


def key_incomplete(request: Request, classes: Iterable[str]) -> RefusedError:
    """Return the refusal when only these classes have their part and the lines' classes have changed."""
    return RefusedError(
        RefusalReason.KEY_INCOMPLETE,
        f"the request under the key {request.key} is stored in part: class {', '.join(sorted(classes))} has "
        "the readings that the configuration gave it then, and their classes have changed; restore that "
        "configuration and repeat the request, or send its other readings under a new key",
    )


class RequestLog:
    """Keys in flight and stored. Times are monotonic seconds."""

    def __init__(self, max_keys: int = MAX_KEYS) -> None:
        self._max_keys = max_keys
        self._in_flight: dict[Key, tuple[Request, Settlement]] = {}
        self._promised: set[Key] = set()
        self._stored: dict[str, dict[str, bytes]] = {}
        self._expiry: deque[tuple[float, str, str]] = deque()
        self._classes: set[str] = set()
        self._doubtful: set[Key] = set()
        self._fresh = 0

    def find(self, cls: str, request: Request, settled: Settlement, now: float) -> Settlement | None:
        """Look a request up: None when new, its settlement when in flight, or a finished one when stored.

        Raises `RefusedError` for other content or classes without their part, `UnknownOutcomeError` when
        parts are in flight.
        """
        self._expire(now)
        found = self._found(request)
        if any(divide_mark(mark)[0] != request.digest for mark, _ in found.values()):
            raise key_reused(request)
        parts = {name: divide_mark(mark)[1] for name, (mark, _) in found.items()}
        holder = cls if parts.get(cls) == request.part else None
        if holder is None:
            holder = next((name for name, part in parts.items() if not part), None)
        if holder is not None:
            running = found[holder][1]
            if running is not None:
                return running
        elif all(part == request.part for part in parts.values()):
            return None
        elif all(part_count(part) != count for part, count in Counter(parts.values()).items()):
            raise key_incomplete(request, parts)
        elif any(running is not None for _, running in found.values()):
            raise UnknownOutcomeError("the request under this key is not yet stored in all of its classes")
        settled.set_result(None)
        return settled

    def claim(self, cls: str, request: Request, settled: Settlement, now: float) -> Settlement | None:
        """Claim a new key for a chunk with outcome `settled`, else return as `find`. Raises `RefusedError`
        also at the limit.
        """
        known = self.find(cls, request, settled, now)
        if known is not None:
            return known
        if len(self._expiry) + len(self._in_flight) >= self._max_keys:
            raise RefusedError(
                RefusalReason.BUSY,
                f"{self._max_keys} idempotency keys are known, no more can be remembered",
                60.0,
            )
        self._in_flight[cls, name_of(request)] = (request, settled)
        self._classes.add(cls)
        return None

    def promise(self, cls: str, request: Request) -> None:
        """Note the key's chunk as acknowledged and no longer refusable."""
        self._promised.add((cls, name_of(request)))

    def is_promised(self, cls: str, request: Request) -> bool:
        """Tell whether the key's chunk in flight is acknowledged as accepted."""
        return (cls, name_of(request)) in self._promised

    def store(self, cls: str, request: Request, now: float) -> None:
        name = name_of(request)
        self._in_flight.pop((cls, name), None)
        self._promised.discard((cls, name))
        stored = self._stored.setdefault(cls, {})
        if name not in stored:
            self._expiry.append((now + KNOWN_SECONDS, cls, name))
            self._fresh += 1
        stored[name] = request.mark
        self._classes.add(cls)

    def forget(self, cls: str, request: Request, settled: Settlement) -> None:
        """Free a refused request's key, if `settled` claimed it."""
        key = (cls, name_of(request))
        running = self._in_flight.get(key)
        if running is not None and running[1] is settled:
            del self._in_flight[key]
            self._promised.discard(key)

    def doubt(self, cls: str) -> None:
        """Mark a class's stored keys as doubtful after a store loss."""
        self._doubtful.update((cls, name) for name in self._stored.get(cls, ()))

    def classes_of(self, request: Request) -> list[str]:
        """Return classes with a part of the request."""
        return sorted(self._found(request))

    def is_doubtful(self, cls: str, request: Request) -> bool:
        return (cls, name_of(request)) in self._doubtful

    def known(self, now: float) -> dict[Key, tuple[bytes, float]]:
        """Return stored keys with content mark and remaining seconds."""
        self._expire(now)
        return {(cls, name): (self._stored[cls][name], expires - now) for expires, cls, name in self._expiry}

    def fresh(self, now: float) -> dict[Key, tuple[bytes, float]]:
        """Return keys added since the last call."""
        self._expire(now)
        newest, self._fresh = islice(reversed(self._expiry), self._fresh), 0
        return {(cls, name): (self._stored[cls][name], expires - now) for expires, cls, name in newest}

    def count(self, now: float) -> int:
        self._expire(now)
        return len(self._expiry) + len(self._in_flight)

    def _found(self, request: Request) -> dict[str, tuple[bytes, Settlement | None]]:
        """Return by class the mark and pending outcome of a request's parts."""
        name, found = name_of(request), dict[str, tuple[bytes, Settlement | None]]()
        for cls in self._classes:
            if (running := self._in_flight.get((cls, name))) is not None:
                found[cls] = running[0].mark, running[1]
            elif (mark := self._stored.get(cls, {}).get(name)) is not None:
                found[cls] = mark, None
        return found

    def _expire(self, now: float) -> None:
        while self._expiry and self._expiry[0][0] <= now:
            _, cls, name = self._expiry.popleft()
            del self._stored[cls][name]
            self._doubtful.discard((cls, name))


class Ages:
    """Ages of instants in seconds before `now`, asked newest first.

    They count running time: monotonic within a boot, and earlier boots up to their last instant. Off time
    counts by wall clocks synchronised on both sides. An age may be too small, never too large.
    """

    def __init__(self, now: Instant) -> None:
        self._now = now
        self._boot, self._monotonic = now.clock.boot, now.clock.monotonic
        self._ran = 0

    def of(self, then: Instant) -> float:
        """Return an instant's age; it must not be newer than those before."""
        clock = then.clock
        if clock.boot == self._boot:
            self._ran += max(0, self._monotonic - clock.monotonic)
            self._monotonic = min(self._monotonic, clock.monotonic)
        else:
            self._ran += self._monotonic
            self._boot, self._monotonic = clock.boot, clock.monotonic
        believed = clock.synchronised and self._now.clock.synchronised
        by_wall = self._now.wall - then.wall if believed else 0
        return max(self._ran, by_wall) / 1e9
