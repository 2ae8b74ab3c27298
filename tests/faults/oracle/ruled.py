"""What the rules of a leaf leave of a series. Pure."""

from __future__ import annotations

from collections.abc import Container

from tests.faults.oracle.journal import Sent
from tests.faults.oracle.numbered import Series, contents


def dropped(series: Series, sent: Sent, n: int) -> bool:
    """Whether a rule drops a reading."""
    return contents(series, n)[0] == sent.made.dropped


def missing(series: Series, sent: Sent, there: Container[int]) -> list[int]:
    """The acknowledged readings that should be `there` and are not.

    Under a deadband a reading may be left out that did not move since the last one that is there. Where it
    did, it is missing, and what follows is compared with it: it may have been stored, and be gone.
    """
    numbers = [n for n in range(1, sent.acknowledged + 1) if n not in sent.unknown]
    if sent.made.deadband is None:
        return [n for n in numbers if n not in there and not dropped(series, sent, n)]
    absent, last = [], None
    for n in numbers:
        value = contents(series, n)[1]
        if n in there:
            last = value
        elif last is None or abs(float(value) - float(last)) > sent.made.deadband:
            absent.append(n)
            last = value
    return absent


def must_be_stored(series: Series, sent: Sent) -> int:
    """How many of the acknowledged readings must have been stored, whatever a deadband leaves out."""
    if sent.made.deadband is not None:
        return 0
    numbers = range(1, sent.acknowledged + 1)
    return sum(n not in sent.unknown and not dropped(series, sent, n) for n in numbers)
