"""Derives corrections of stamped times from a boot's clock history. Pure.

Wall and `CLOCK_BOOTTIME` differ by a constant except for steps, so a boot is a list of segments with one
offset each. A segment is believed once the kernel reports synchronisation; then earlier unbelieved segments
have a known error. A believed segment ended by a step stays uncorrected, as its error's start is unknown.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct, structs

from agent.base.clock import Instant
from agent.contract import Correction

TOLERANCE: Final = 100_000_000
"""Ns below which differences are ignored."""
MAX_SEGMENTS: Final = 16
_LEAP: Final = 1_000_000_000


class Segment(Struct, frozen=True):
    """Monotonic interval in which the wall clock was ahead by `offset`, in ns. `until` None while it lasts;
    `believed` if synchronised.
    """

    since: int
    offset: int
    believed: bool = False
    until: int | None = None


class Timeline(Struct, frozen=True):
    """The clock of one boot: the present segment and earlier doubtful ones."""

    boot: str
    now: Segment
    doubtful: tuple[Segment, ...] = ()


class Observed(Struct, frozen=True):
    """The result of an instant: new timeline, `stepped` ns (0: none), and `corrections`."""

    timeline: Timeline
    stepped: int = 0
    corrections: tuple[Correction, ...] = ()


def observe(known: Timeline | None, instant: Instant, domain: str) -> Observed:
    """Observe the clocks; `known` is the last timeline, possibly of another boot."""
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
