"""The machine's clock: set at all, synchronised, and beside the hub's. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from agent.cli.checks.finding import Finding, failure, ok, warning

GROUP: Final = "clock"
_EARLIEST: Final = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
"""No machine runs this program before it was written."""
_NEAR: Final = 2.0
_FAR: Final = 60.0
_SERVICE: Final = "let chrony or systemd-timesyncd run (`timedatectl set-ntp true`) and reach a time server"


def is_set(wall: float) -> bool:
    """Whether a clock that says this (epoch seconds) can have been set."""
    return wall >= _EARLIEST


def judge(wall: float, synchronised: bool, ahead: tuple[float, float] | None = None) -> Iterator[Finding]:
    """What to say of a clock; `ahead` is by how many seconds it is ahead of the hub's, and how exact that is,
    None where the hub was not asked."""
    shown = datetime.fromtimestamp(wall, UTC)
    if not is_set(wall):
        yield failure(GROUP, f"the clock says {shown:%Y-%m-%d %H:%M} UTC: it is not set", _SERVICE)
    elif not synchronised:
        yield warning(
            GROUP,
            f"the kernel does not call the clock synchronised; it says {shown:%Y-%m-%d %H:%M} UTC",
            _SERVICE,
        )
    else:
        yield ok(GROUP, "the kernel calls the clock synchronised")
    if ahead is not None:
        yield _beside_the_hub(*ahead)


def _beside_the_hub(ahead: float, exact: float) -> Finding:
    apart = max(0.0, abs(ahead) - exact)
    if apart <= _NEAR:
        return ok(GROUP, f"this clock and the hub's differ by less than {_NEAR + exact:.0f} s")
    sentence = f"this clock is {_span(abs(ahead))} {'ahead of' if ahead > 0 else 'behind'} the hub's"
    remedy = f"{_SERVICE}; do the same on the hub"
    return failure(GROUP, sentence, remedy) if apart > _FAR else warning(GROUP, sentence, remedy)


def _span(seconds: float) -> str:
    for size, name in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds:.0f} s"
