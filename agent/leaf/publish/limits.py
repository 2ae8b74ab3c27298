"""What bounds the publish path: bytes in memory, readings a second, batches a second, and whether a chunk may
come in now."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct, field

from agent.base.wait import loop_time
from agent.contract import AGENT_INPUT, COMMANDS_INPUT, MAX_UNPACKED_BYTES
from agent.leaf.intake import Chunk, RefusalReason, RefusedError

CREDIT: Final = 86_400.0
"""Seconds of unused batches that a class may seal at once."""
MAX_WAIT: Final = 5.0
"""Seconds for which the bound on batches holds one back at most, half of what a sender waits."""


class ByteBudget:
    """`limit` bytes; a single request above the limit is let through alone rather than never."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.used = 0

    def take(self, size: int) -> bool:
        """Take `size` bytes if there is room and no other waits for it."""
        if self._waiting or not self._fits(size):
            return False
        self.used += size
        return True

    async def acquire(self, size: int) -> None:
        """Take `size` bytes, waiting for room. When cancelled nothing is taken."""
        if self.take(size):
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._wake()
            else:
                self.release(size)
            raise

    def release(self, size: int) -> None:
        """Give `size` bytes back."""
        self.used -= size
        self._wake()

    def _fits(self, size: int) -> bool:
        return self.used == 0 or self.used + size <= self._limit

    def _wake(self) -> None:
        while self._waiting:
            size, turn = self._waiting[0]
            if not turn.cancelled():
                if not self._fits(size):
                    return
                self.used += size
                turn.set_result(None)
            self._waiting.popleft()


class RateLimit:
    """A bucket that holds what may come in one second. What is larger is let in when the bucket is full, and
    paid for afterwards. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._rate: float | None = None
        self._level = 0.0
        self._at = float("-inf")

    def limit(self, readings_per_second: float | None) -> None:
        """From now on no more than this; None lifts the limit."""
        self._rate = readings_per_second
        self._level, self._at = 0.0, float("-inf")

    def take(self, readings: int, now: float) -> float:
        """Take room for so many readings: 0 when there is, otherwise the seconds after which to ask again."""
        if self._rate is None:
            return 0.0
        # An infinite wait has filled it.
        filled = self._level + (now - self._at) * self._rate
        self._level, self._at = min(self._rate, filled), now
        needed = min(float(readings), self._rate)
        if self._level < needed:
            return (needed - self._level) / self._rate
        self._level -= readings
        return 0.0


class BatchRate:
    """How many batches may be sealed: `rate` a second on average, and at once what was left unused for up to
    `credit` seconds. Counts as the generic cell rate algorithm does (ITU-T I.371). Times are monotonic
    seconds."""

    def __init__(self, rate: float, credit: float = CREDIT) -> None:
        self._interval = 1.0 / rate
        self._credit = credit
        self._spent_until = float("-inf")
        """The instant up to which all batches of that rate are used; in the future by those used early."""

    def reserve(self, now: float) -> float:
        """Use one batch; returns the instant from which on it may be sealed."""
        earliest = max(now, self._spent_until - self._credit)
        self._spent_until = max(now, self._spent_until) + self._interval
        return min(earliest, now + MAX_WAIT)

    def give_back(self, now: float) -> None:
        """What was reserved last goes without waiting, for it is full. It counts only while credit is left,
        so that it puts off no other."""
        if self._spent_until - self._credit > now:
            self._spent_until -= self._interval


class Lingers(Struct):
    """For how many seconds a batch waits for more readings although nothing is under way; 0 for not at all.
    An input's goes before a class's, that before `default`, and `override` before all."""

    inputs: Mapping[str, float] = field(default_factory=dict)
    classes: Mapping[str, float] = field(default_factory=dict)
    default: float = 0.0
    override: float | None = None

    def of(self, key: tuple[str, str]) -> float:
        """That of an input and class."""
        if self.override is not None:
            return self.override
        linger = self.inputs.get(key[0])
        return self.classes.get(key[1], self.default) if linger is None else linger


_SMALLEST_USUAL: Final = 2**20
"""Bytes that a server of which nothing is known yet takes in a message: the default of nats-server."""
HEADER_BYTES: Final = 1024
"""Room for the headers whose size does not depend on the chunks."""
AWAY_GRACE = 3.0
"""How long a lost local server is waited for before chunks are refused at once."""
_OWN: Final = frozenset({AGENT_INPUT, COMMANDS_INPUT})


class Admission:
    """Refuses what cannot be stored: because the agent stops, its server is away, a stream stores nothing
    (`refusal` says why, None while it is not known not to), more comes than a command allows, or a chunk is
    larger than a batch may be."""

    def __init__(self, refusal: Callable[[str], str | None]) -> None:
        self.refusal = refusal
        self.hub_takes: Callable[[], int] = lambda: 0
        """Bytes that the hub's server takes in a message, 0 if unknown."""
        self._max_payload = 0
        self.stopping = False
        self._away_since: float | None = loop_time()
        self._rate = RateLimit()

    def server_back(self, max_payload: int) -> None:
        """The local server takes batches, in messages of up to `max_payload` bytes."""
        self._away_since = None
        self._max_payload = max_payload

    def fits(self, chunk: Chunk) -> bool:
        """Whether a chunk fits into a message even where nothing of it can be compressed."""
        most, _ = self._most()
        return len(chunk.payload) + HEADER_BYTES <= (most or _SMALLEST_USUAL)

    def too_large(self, size: int, readings: int) -> RefusedError | None:
        """Why a message of `size` bytes with so many readings can't be sent; None where it can."""
        most, server = self._most()
        if not most or size <= most:
            return None
        remedy = "send fewer readings" if readings > 1 else f"raise max_payload of {server}"
        text = f"{size} bytes compressed, {server} takes {most} in a message; {remedy}"
        return RefusedError(RefusalReason.TOO_LARGE, text)

    def _most(self) -> tuple[int, str]:
        """Bytes of the largest message, 0 if unknown, and the server that says so. The hub's server ends the
        link over a larger one, which then comes again as its first."""
        hub = self.hub_takes()
        if hub and hub < self._max_payload:
            return hub, "the hub's server"
        return self._max_payload, "the local server"

    def server_away(self) -> None:
        """The local server takes none: chunks that wait go on waiting, later ones are refused after
        `AWAY_GRACE`."""
        self._away_since = loop_time()

    def limit_rate(self, readings_per_second: float | None) -> None:
        """Take in no more than this, None for no limit; what the agent itself says is exempt."""
        self._rate.limit(readings_per_second)

    def check_store(self, cls: str, *, early: bool) -> None:
        """Raises `RefusedError` where the stream of a class takes nothing; what is acknowledged `early` need
        not find the server there."""
        if self.stopping:
            raise stopping()
        why = self.refusal(cls) if early else self.refusing(cls)
        if why is not None:
            raise RefusedError(RefusalReason.UNAVAILABLE, why, 5.0)

    def refusing(self, cls: str) -> str | None:
        """Why what is to be stored of a class is refused now, None where it is not."""
        if self._away_since is not None and loop_time() - self._away_since > AWAY_GRACE:
            return "the local NATS server does not answer"
        return self.refusal(cls)

    def check_chunk(self, input_name: str, chunk: Chunk) -> None:
        """Raises `RefusedError` for what is too large, or above the rate that a command allows."""
        if (size := len(chunk.payload)) > MAX_UNPACKED_BYTES:
            most = f"a batch has {MAX_UNPACKED_BYTES} at most; send fewer readings"
            text = f"the readings are {size} bytes with time and device, {most}"
            raise RefusedError(RefusalReason.TOO_LARGE, text)
        if input_name not in _OWN and (wait := self._rate.take(chunk.count, loop_time())) > 0:
            limited = "more readings come in than a command allows for the time being"
            raise RefusedError(RefusalReason.RATE, limited, wait)


def stopping() -> RefusedError:
    """The agent takes nothing any more."""
    return RefusedError(RefusalReason.STOPPING, "the agent is stopping", 5.0)
