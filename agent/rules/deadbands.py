"""What was sent last of each series under a deadband. Pure: the caller brings the time.

What is held is bounded: of `MAX_SERIES` series, about 4 MB. Beyond that the one that was sent longest ago is
forgotten and its next reading is sent: a deadband then lets more through than it need, never less.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from hashlib import blake2b
from typing import Final, NamedTuple

MAX_SERIES: Final = 10_000
_KEY_BYTES: Final = 16


class Band(NamedTuple):
    """A rule's deadband: a reading is sent when its value moved by more than `width`, or `after` seconds from
    the one before (None: never for that)."""

    rule: str
    width: float
    after: float | None


class Sent(NamedTuple):
    """What was sent: its value (of a text only a digest), its `ts` in seconds since 1970, and when, in
    monotonic seconds."""

    value: float | bool | bytes
    ts: float
    at: float


Moves = dict[bytes, Sent]


def key_of(metric: str, device: str, tags: bytes) -> bytes:
    """What tells a series: metric, device, and its tags as they stand in the line."""
    text = f"{len(metric)} {metric}{len(device)} {device}".encode()
    return blake2b(text + tags, digest_size=_KEY_BYTES).digest()


def comparable(value: float | str | bool) -> float | bool | bytes:
    """A value as it is remembered."""
    if isinstance(value, str):
        return blake2b(value.encode(), digest_size=_KEY_BYTES).digest()
    return value


class Deadbands:
    """What was stored last of each series. A chunk gathers its moves apart; `commit` makes them count once it
    is stored, so that a reading is never held back for one that is not."""

    def __init__(self, max_series: int = MAX_SERIES) -> None:
        self._max_series = max_series
        self._sent: OrderedDict[bytes, Sent] = OrderedDict()

    def __len__(self) -> int:
        """How many series are remembered."""
        return len(self._sent)

    def sends(self, key: bytes, one: Sent, band: Band, moves: Moves) -> bool:
        """Whether a reading is to be sent; then it is among the moves of its chunk."""
        last = moves.get(key) or self._sent.get(key)
        if last is not None and not _moved(last, one, band):
            return False
        moves[key] = one
        return True

    def commit(self, moves: Mapping[bytes, Sent]) -> None:
        """The readings of these moves are stored."""
        for key, one in moves.items():
            self._sent[key] = one
            self._sent.move_to_end(key)
        while len(self._sent) > self._max_series:
            self._sent.popitem(last=False)


def _moved(last: Sent, one: Sent, band: Band) -> bool:
    if band.after is not None and max(abs(one.ts - last.ts), one.at - last.at) >= band.after:
        return True
    old, new = last.value, one.value
    number = isinstance(new, float | int) and not isinstance(new, bool)
    if number and isinstance(old, float | int) and not isinstance(old, bool):
        return not abs(new - old) <= band.width  # type: ignore[operator]
    return type(old) is not type(new) or old != new
