"""Limits the publish path: memory, readings and batches a second, and admission."""

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
"""Longest delay by the batch rate, half of a sender's wait."""


class ByteBudget:
    """A budget of `limit` bytes; a larger request passes alone."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.used = 0

    def take(self, size: int) -> bool:
        """Take bytes if available and no one waits."""
        if self._waiting or not self._fits(size):
            return False
        self.used += size
        return True

    async def acquire(self, size: int) -> None:
        """Take bytes, waiting for them. Takes nothing if cancelled."""
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
    """A token bucket of one second; larger requests pass when it is full. Monotonic seconds."""

    def __init__(self) -> None:
        self._rate: float | None = None
        self._level = 0.0
        self._at = float("-inf")

    def limit(self, readings_per_second: float | None) -> None:
        """Set the limit; None for none."""
        self._rate = readings_per_second
        self._level, self._at = 0.0, float("-inf")

    def take(self, readings: int, now: float) -> float:
        """Take readings; returns 0 or the seconds to wait."""
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
    """Limits batches to `rate` a second with `credit` seconds of burst (GCRA, ITU-T I.371). Monotonic
    seconds.
    """

    def __init__(self, rate: float, credit: float = CREDIT) -> None:
        self._interval = 1.0 / rate
        self._credit = credit
        self._spent_until = float("-inf")
        """Time up to which batches are used; in the future after early use."""

    def reserve(self, now: float) -> float:
        """Use a batch and return when it may be sealed."""
        earliest = max(now, self._spent_until - self._credit)
        self._spent_until = max(now, self._spent_until) + self._interval
        return min(earliest, now + MAX_WAIT)

    def give_back(self, now: float) -> None:
        """Let the last reserved batch pass because it is full; counts only within the credit."""
        if self._spent_until - self._credit > now:
            self._spent_until -= self._interval


class Lingers(Struct):
    """Seconds that batches wait for more readings although none is in flight; 0 for no wait. Priority:
    `override`, input, class, `default`.
    """

    inputs: Mapping[str, float] = field(default_factory=dict)
    classes: Mapping[str, float] = field(default_factory=dict)
    default: float = 0.0
    override: float | None = None

    def of(self, key: tuple[str, str]) -> float:
        if self.override is not None:
            return self.override
        linger = self.inputs.get(key[0])
        return self.classes.get(key[1], self.default) if linger is None else linger


_SMALLEST_USUAL: Final = 2**20
"""Assumed message limit of an unknown server, nats-server's default."""
HEADER_BYTES: Final = 1024
"""Bytes for headers of fixed size."""
AWAY_GRACE = 3.0
"""Seconds to wait for a lost server before refusing."""
_OWN: Final = frozenset({AGENT_INPUT, COMMANDS_INPUT})


class Admission:
    """Refuses chunks that can't be stored.

    Reasons: stopping, server away, stream not storing (`refusal`), a command's rate, or size.
    """

    def __init__(self, refusal: Callable[[str], str | None]) -> None:
        self.refusal = refusal
        self.hub_takes: Callable[[], int] = lambda: 0
        """The hub server's message limit, 0 if unknown."""
        self._max_payload = 0
        self.stopping = False
        self._away_since: float | None = loop_time()
        self._rate = RateLimit()

    def server_back(self, max_payload: int) -> None:
        """Note the server's return and its message limit."""
        self._away_since = None
        self._max_payload = max_payload

    def fits(self, chunk: Chunk) -> bool:
        """Tell whether a chunk fits a message without compression."""
        most, _ = self._most()
        return len(chunk.payload) + HEADER_BYTES <= (most or _SMALLEST_USUAL)

    def too_large(self, size: int, readings: int) -> RefusedError | None:
        """Return why such a message can't be sent, or None."""
        most, server = self._most()
        if not most or size <= most:
            return None
        remedy = "send fewer readings" if readings > 1 else f"raise max_payload of {server}"
        text = f"{size} bytes compressed, {server} takes {most} in a message; {remedy}"
        return RefusedError(RefusalReason.TOO_LARGE, text)

    def _most(self) -> tuple[int, str]:
        """Return the smallest message limit (0: unknown) and its server. The hub's server cuts the link over
        larger ones.
        """
        hub = self.hub_takes()
        if hub and hub < self._max_payload:
            return hub, "the hub's server"
        return self._max_payload, "the local server"

    def server_away(self) -> None:
        """Note the server's absence: waiting chunks stay, later ones are refused after `AWAY_GRACE`."""
        self._away_since = loop_time()

    def limit_rate(self, readings_per_second: float | None) -> None:
        """Set the reading rate, None for none; the agent's own readings are exempt."""
        self._rate.limit(readings_per_second)

    def check_store(self, cls: str, *, early: bool) -> None:
        """Raise `RefusedError` if a class's stream stores nothing; `early` acknowledgement does not need the
        server.
        """
        if self.stopping:
            raise stopping()
        why = self.refusal(cls) if early else self.refusing(cls)
        if why is not None:
            raise RefusedError(RefusalReason.UNAVAILABLE, why)

    def refusing(self, cls: str) -> str | None:
        """Return why a class is refused now, or None."""
        if self._away_since is not None and loop_time() - self._away_since > AWAY_GRACE:
            return "the local NATS server does not answer"
        return self.refusal(cls)

    def check_chunk(self, input_name: str, chunk: Chunk) -> None:
        """Raise `RefusedError` for a chunk above size or rate."""
        if (size := len(chunk.payload)) > MAX_UNPACKED_BYTES:
            most = f"a batch has {MAX_UNPACKED_BYTES} at most; send fewer readings"
            text = f"the readings are {size} bytes with time and device, {most}"
            raise RefusedError(RefusalReason.TOO_LARGE, text)
        if input_name not in _OWN and (wait := self._rate.take(chunk.count, loop_time())) > 0:
            limited = "more readings come in than a command allows for the time being"
            raise RefusedError(RefusalReason.RATE, limited, wait)


def stopping() -> RefusedError:
    """Return the refusal during the stop."""
    return RefusedError(RefusalReason.STOPPING, "the agent is stopping")
