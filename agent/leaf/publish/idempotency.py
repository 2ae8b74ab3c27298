"""Which push requests are known by their idempotency key: pure but for the clock that the caller brings.

A key is in flight until its batch is settled, then known for ten minutes. The readings of one request may go
to several classes, and some of them may be stored when others are not: so a key is noted by class, with the
part of the request that the class has, and looked up in all classes, for the configuration may have changed
since. Each scope has its own keys: an input, a subject, a peer. A key that comes with another content is
refused, never taken for a repeat. The number of keys is bounded; at the bound a new key is refused rather
than an old one forgotten, for forgetting would store a repeat twice.
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
"""Class, and scope and idempotency key with a colon between."""


def name_of(request: Request) -> str:
    """Scope and key of a request."""
    return f"{request.scope}:{request.key}"


def key_reused(request: Request) -> RefusedError:
    """The key is known with another content."""
    return RefusedError(
        RefusalReason.KEY_REUSED,
        f"the key {request.key} was used within ten minutes for another request; use a new key",
    )


def key_incomplete(request: Request, classes: Iterable[str]) -> RefusedError:
    """Only these classes have their part of the request, and the classes of its lines are others by now."""
    return RefusedError(
        RefusalReason.KEY_INCOMPLETE,
        f"the request under the key {request.key} is stored in part: class {', '.join(sorted(classes))} has "
        "the readings that the configuration gave it then, and their classes have changed; restore that "
        "configuration and repeat the request, or send its other readings under a new key",
    )


class RequestLog:
    """Keys in flight and keys stored. Times are monotonic seconds."""

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
        """Look a key up for a chunk of a class whose outcome is `settled`: None when the readings of the
        chunk are new; the outcome to wait for when they are in flight already, in whichever class; a finished
        outcome when they are stored. Raises `RefusedError` when the key came with another content, or for
        other classes that do not all have their part; `UnknownOutcomeError` when they all have it and some
        parts are in flight."""
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
        """Claim a key of a class for a chunk whose outcome is `settled`, unless it is known: then it is as
        `find` says. Raises `RefusedError` also when too many keys are known."""
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
        """What was claimed under the key is acknowledged as accepted, and not refused any more."""
        self._promised.add((cls, name_of(request)))

    def is_promised(self, cls: str, request: Request) -> bool:
        """Whether what is in flight under the key is acknowledged as accepted."""
        return (cls, name_of(request)) in self._promised

    def store(self, cls: str, request: Request, now: float) -> None:
        """What of the request is of this class is stored."""
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
        """The request was refused: its key is free again, if it was `settled` that claimed it."""
        key = (cls, name_of(request))
        running = self._in_flight.get(key)
        if running is not None and running[1] is settled:
            del self._in_flight[key]
            self._promised.discard(key)

    def doubt(self, cls: str) -> None:
        """What of a class is known as stored was so in a store that was lost or restored from a backup."""
        self._doubtful.update((cls, name) for name in self._stored.get(cls, ()))

    def classes_of(self, request: Request) -> list[str]:
        """The classes in which a part of the request is in flight or stored."""
        return sorted(self._found(request))

    def is_doubtful(self, cls: str, request: Request) -> bool:
        """Whether a stored request may be stored no more."""
        return (cls, name_of(request)) in self._doubtful

    def known(self, now: float) -> dict[Key, tuple[bytes, float]]:
        """The keys stored, each with the mark of its content and the seconds for which it stays known."""
        self._expire(now)
        return {(cls, name): (self._stored[cls][name], expires - now) for expires, cls, name in self._expiry}

    def fresh(self, now: float) -> dict[Key, tuple[bytes, float]]:
        """Those of the known keys that came since the last call."""
        self._expire(now)
        newest, self._fresh = islice(reversed(self._expiry), self._fresh), 0
        return {(cls, name): (self._stored[cls][name], expires - now) for expires, cls, name in newest}

    def count(self, now: float) -> int:
        """How many keys are known."""
        self._expire(now)
        return len(self._expiry) + len(self._in_flight)

    def _found(self, request: Request) -> dict[str, tuple[bytes, Settlement | None]]:
        """By class, the mark under which a part of the request is known, and its outcome while in flight."""
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
    """Ages of instants, asked from the newest to the oldest, in seconds before `now`.

    They go by the time in which the machine ran: within a boot that is monotonic time, and an earlier boot
    ran at least until its last instant. How long the machine was off only a wall clock knows; it is
    believed where the kernel called it synchronised both times. So an age may be too small, never too large.
    """

    def __init__(self, now: Instant) -> None:
        self._now = now
        self._boot, self._monotonic = now.clock.boot, now.clock.monotonic
        self._ran = 0

    def of(self, then: Instant) -> float:
        """The age of an instant that is not newer than those asked before."""
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
