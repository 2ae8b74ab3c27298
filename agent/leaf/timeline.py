"""What a boot's wall clock has been through, and what follows for the times that were stamped by it. Pure.

Wall and monotonic time (`CLOCK_BOOTTIME`) move apart only by a step: both are slewed alike and go on over a
suspend. So a boot is a row of segments with one offset each. The clock of a segment is believed once the
kernel has called it synchronised; then every earlier segment of this boot that never was is known to have
been off, and by how much. A believed clock that is stepped was wrong for an unknown time: that
segment is left as it is.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct, structs

from agent.base.clock import Instant
from agent.contract import Correction

TOLERANCE: Final = 100_000_000
"""Ns of the wall clock that are not worth a correction, and that two readings may differ by."""
MAX_SEGMENTS: Final = 16
_LEAP: Final = 1_000_000_000


class Segment(Struct, frozen=True):
    """An interval of monotonic time in which the wall clock was ahead of it by `offset`, all in ns. `until`
    is None while it lasts; `believed` once the kernel has called the clock synchronised."""

    since: int
    offset: int
    believed: bool = False
    until: int | None = None


class Timeline(Struct, frozen=True):
    """The clock of one boot: the present segment, and those before it that are in doubt."""

    boot: str
    now: Segment
    doubtful: tuple[Segment, ...] = ()


class Observed(Struct, frozen=True):
    """What an instant adds: the timeline with it, by how many ns the wall clock was `stepped` (0: it was
    not), and the `corrections` that follow."""

    timeline: Timeline
    stepped: int = 0
    corrections: tuple[Correction, ...] = ()


def observe(known: Timeline | None, instant: Instant, domain: str) -> Observed:
    """Look at the clocks once more; `known` is what the last look left, if need be of another boot."""
    clock = instant.clock
    if known is None or known.boot != clock.boot:
        # What stamped readings in this boot before, if anything did, left nothing else to go by.
        known = Timeline(clock.boot, Segment(0, instant.offset))
    step = _step(known.now, instant)
    if step and instant.leap and abs(abs(step) - _LEAP) <= TOLERANCE:
        # The clock was right before and is right after it.
        known = structs.replace(known, now=structs.replace(known.now, offset=instant.offset))
    elif step:
        known = _stepped(known, instant)
    if not clock.synchronised or known.now.believed:
        return Observed(known, step)
    believed = Timeline(known.boot, structs.replace(known.now, believed=True))
    corrections = [_correction(domain, known, segment) for segment in known.doubtful if _off(known, segment)]
    return Observed(believed, step, tuple(corrections))


def _step(now: Segment, instant: Instant) -> int:
    step = instant.offset - now.offset
    return step if abs(step) > TOLERANCE + instant.apart else 0


def _stepped(known: Timeline, instant: Instant) -> Timeline:
    now, at = known.now, instant.clock.monotonic
    doubtful = known.doubtful
    if not now.believed and at > now.since:
        doubtful = (*doubtful, Segment(now.since, now.offset, until=at))[-MAX_SEGMENTS:]
    return Timeline(known.boot, Segment(at, instant.offset), doubtful)


def _off(known: Timeline, segment: Segment) -> bool:
    return abs(known.now.offset - segment.offset) > TOLERANCE


def _correction(domain: str, known: Timeline, segment: Segment) -> Correction:
    assert segment.until is not None
    by = known.now.offset - segment.offset
    return Correction(domain, known.boot, segment.since, segment.until, segment.offset, by)
