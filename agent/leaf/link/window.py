"""Decides how many messages of a class may be under way over the link. Pure: no clock, no connection.

nats-server 2.15.1 requests an acknowledgement from the hub once `max_ack_pending` messages are under way,
after a second of silence, or after 1 MiB (`needFlowControl` in server/consumer.go). After a break the hub's
server has all unacknowledged messages repeated (`resetStartingSeqLocked`), and the answer to its request
waits behind the queue. With 10,000 messages under way a line of 100 kB/s that breaks each seven seconds
delivers nothing.

The window is the number that the line acknowledges in `ROUND_SECONDS` and `ROUND_TRIPS` round trips. The
consumer's limit rises to the window in steps. Each step makes the server request an acknowledgement while
the line is busy.
"""

from __future__ import annotations

import math
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from agent.leaf.stream_configs import MAX_ACK_PENDING

LARGEST: Final = 10_000
"""Doubles the rate of 1,000 at 300 ms; more gains nothing (measured on nats-server 2.15.1)."""
ROUND_SECONDS: Final = 0.6
RELAYED_SECONDS: Final = 3.0
"""The same for a relayed link, which repeats nothing after a break. Its speed has breaks in it, so it is
averaged over as long."""
ROUND_TRIPS: Final = 1.5
LONGEST_ROUND_TRIP: Final = 1.0
GROWTH: Final = 16.0
PROBE_SECONDS: Final = 5.0
MEMORY_SECONDS: Final = 1.0
"""Time constant of the speed."""
_SLACK: Final = 0.25
"""Least relative change of a consumer's limit while no messages wait."""
_LIVED_SECONDS: Final = 1.0
_HEARTBEAT_SECONDS: Final = 1.0
"""Silence after which nats-server 2.15.1 sends a heartbeat. A reset consumer makes no new request while an
earlier request is unanswered; the heartbeat makes the hub's server answer the request that the break lost."""
_SOON, _NEXT = 0.1, 0.2
IN_VAIN: Final = 3
"""Consecutive links without an arrival after which the agent reports it."""


class WindowLook(Struct, frozen=True):
    """Describes one look at the link consumer of a class. Times are monotonic seconds."""

    now: float
    link: str
    """Identifies the link; "" while it is down."""
    epoch: str
    paused: bool
    bound: bool
    """Whether the hub's server listens to the consumer."""
    acknowledged: int
    """The sequence up to which everything is acknowledged."""
    deliveries: int
    """Deliveries since the hub's server last reset the consumer."""
    under_way: int
    waiting: int
    """Messages that are not under way yet."""
    round_trip: float = 0.0
    """Seconds; 0 if unknown."""
    relayed: bool = False
    """Whether the link continues after a break, so that nothing under way is repeated."""


class Window(Struct, frozen=True):
    """Remembers the line of one class between two looks."""

    size: int = MAX_ACK_PENDING
    """Messages that may be under way."""
    limit: int = MAX_ACK_PENDING
    """The consumer's next `max_ack_pending`."""
    speed: float = 0.0
    """Recently acknowledged messages a second, 0 if unknown."""
    over: tuple[str, str] = ("", "")
    """The link and the epoch."""
    began_at: float = 0.0
    """Start of the flow over this link, 0 before."""
    acknowledged: int = 0
    deliveries: int = 0
    moved_at: float = 0.0
    """Last acknowledgement seen, or last look with nothing under way."""
    owing: bool = False
    """Whether messages were under way or waited at the last look."""
    crowded: bool = False
    """Whether messages waited at the last look: then the line and not the readings set the pace."""
    probe: int = 0
    """Limit from a new link until the hub's server has reset the consumer, 0 afterwards. It admits one more
    message: that message shows the server a gap, and the server drops all messages behind the gap."""
    fresh_at: float = 0.0
    """Time of that reset, 0 after the next acknowledgement."""
    arrived: bool = False
    """Whether anything was acknowledged over this link."""
    fruitless: int = 0
    """Consecutive links without an acknowledgement, though messages waited."""
    grew: bool = False
    """Whether the window became larger at the last look."""

    @property
    def next_look(self) -> float | None:
        """Seconds until the next look, None without hurry."""
        if self.probe or self.grew:
            return _SOON
        return _NEXT if self.crowded and self.size < LARGEST else None

    def differs(self, limit: int) -> bool:
        """Return whether to change a consumer with this limit."""
        if self.probe or self.crowded or self.size in (1, LARGEST):
            return limit != self.limit
        return abs(limit - self.limit) > _SLACK * self.limit


def round_seconds(round_trip: float, relayed: bool = False) -> float:
    """Return the seconds from a full window's first message to its acknowledgement."""
    seconds = RELAYED_SECONDS if relayed else ROUND_SECONDS
    return seconds + ROUND_TRIPS * min(round_trip, LONGEST_ROUND_TRIP)


def looked(window: Window, look: WindowLook) -> Window:
    """Return the window after a look."""
    if (look.link, look.epoch) != window.over:
        window = _over_another(window, look)
    window = _measured(window, look)
    if window.probe:
        limit = window.probe
    elif window.crowded and window.fresh_at:
        limit = _before_heartbeat(window, look)
    elif window.crowded and window.size < LARGEST:
        limit = min(window.size, look.under_way + math.ceil(window.size / 2))
    else:
        limit = window.size
    return replace(window, limit=limit)


def _before_heartbeat(window: Window, look: WindowLook) -> int:
    """Return the limit until the first acknowledgement after a reset: enough to keep the line busy during the
    silence before the heartbeat, then steps at the line's speed; a step triggers the next request."""
    silence = _HEARTBEAT_SECONDS + _SOON + _NEXT
    busy = max(window.size, round(window.speed * (silence + min(look.round_trip, LONGEST_ROUND_TRIP))))
    if look.now - window.fresh_at < silence:
        return min(busy, LARGEST)
    return min(busy + 2 * window.size, look.under_way + math.ceil(window.speed * _NEXT or 1), LARGEST)


def _measured(window: Window, look: WindowLook) -> Window:
    moved = max(0, look.acknowledged - window.acknowledged)
    seen = replace(
        window,
        acknowledged=look.acknowledged,
        deliveries=look.deliveries,
        owing=look.under_way > 0 or look.waiting > 0,
        crowded=bool(look.link) and not look.paused and look.waiting > 0,
        arrived=window.arrived or moved > 0,
        fruitless=0 if moved else window.fruitless,
        fresh_at=0.0 if moved else window.fresh_at,
        grew=False,
    )
    waited = window.began_at and look.now - window.began_at > PROBE_SECONDS
    if window.probe and (moved or waited or look.deliveries < window.deliveries):
        seen = replace(seen, probe=0, moved_at=look.now, fresh_at=0.0 if moved else look.now)
    if not look.link or look.paused or not look.bound:
        return replace(seen, moved_at=look.now)
    if not window.began_at or window.probe != seen.probe:
        return replace(seen, began_at=window.began_at or look.now, moved_at=look.now)
    size, elapsed = window.size, look.now - window.moved_at
    allowed = round_seconds(look.round_trip, look.relayed)
    patience = 2 * allowed + (2 * _HEARTBEAT_SECONDS if window.fresh_at else 0.0)
    if window.speed:
        patience = max(patience, 2 * look.under_way / window.speed)
    if moved and window.crowded and elapsed > 0:
        speed = moved / elapsed
        if window.speed and (moved < size or elapsed > allowed / 2):
            memory = RELAYED_SECONDS if look.relayed else MEMORY_SECONDS
            speed = window.speed + (speed - window.speed) * -math.expm1(-elapsed / memory)
        wanted = min(max(speed * allowed, size / 2), size * GROWTH, LARGEST)
        seen = replace(seen, speed=speed, size=max(1, round(wanted)))
    elif not moved and look.under_way and elapsed > patience:
        return replace(seen, size=max(1, size // 2), speed=window.speed / 2, moved_at=look.now)
    at_rest = moved > 0 or look.under_way == 0
    return replace(seen, moved_at=look.now if at_rest else window.moved_at, grew=seen.size > size)


def _over_another(window: Window, look: WindowLook) -> Window:
    """Begin another link or epoch, with half the window if nothing arrived over the last link."""
    lived = look.now - window.began_at if window.began_at else 0.0
    in_vain = window.owing and not window.arrived and lived >= _LIVED_SECONDS
    same_epoch = window.over[1] in ("", look.epoch)
    return Window(
        size=max(1, window.size // 2) if in_vain else window.size,
        speed=0.0 if in_vain else window.speed,
        over=(look.link, look.epoch),
        acknowledged=look.acknowledged,
        probe=look.under_way + 1 if look.link and same_epoch and look.under_way else 0,
        fruitless=window.fruitless + 1 if in_vain else window.fruitless,
    )
