"""Times as readings have them, singly and by the column. No I/O."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from agent import contract
from agent.leaf.inputs.formats.line_values import LineError, is_whole, quoted, to_json

_MAX_SECONDS: Final = 8192
_EPOCH: Final = datetime(1970, 1, 1)
"""Without its offset, which is written as Z."""
_FIRST_SECOND: Final = -62_135_596_800
"""The year 1 begins."""
_DIGITS: Final = 19
"""Of nanoseconds since 1970, from 2001 to 2286."""
_LOOK: Final = 16
"""Times that tell whether most are repeated."""
Column = list[bytes]


class Stamps:
    """Writes times as readings have them, and remembers seconds: most readings share theirs with others."""

    def __init__(self) -> None:
        self._begun: dict[bytes, bytes] = {}
        """How readings begin, up to the point of their fraction, by the digits of their second."""

    def reading(self, ns: int) -> bytes:
        """How a reading of this time (ns since 1970) begins; raises `LineError`."""
        second, rest = divmod(ns, 10**9)
        return self._joined(b"%d" % second, (b"%09d" % rest).rstrip(b"0"))

    def written(self, stamp: bytes, unit: int) -> bytes:
        """The same for a time as it is written, in units of so many nanoseconds; raises `LineError`."""
        if unit == 1 and len(stamp) == _DIGITS and stamp.isdigit():
            return self._joined(stamp[:10], stamp[10:].rstrip(b"0"))
        if not is_whole(stamp):
            raise LineError(f"time {quoted(stamp)} is not a whole number", "time")
        return self.reading(int(stamp) * unit)

    def machine(self, ns: int) -> bytes:
        """The same for a time by this machine's clock."""
        return f'{{"ts":"{contract.machine_time(ns)}",'.encode()

    def columns(self, stamps: list[bytes]) -> list[Column]:
        """How readings of these times begin, each of nineteen digits, in columns to be joined row by row."""
        if 2 * len(set(stamps[:_LOOK])) <= len(stamps[:_LOOK]):
            made = {stamp: self.written(stamp, 1) for stamp in set(stamps)}
            return [list(map(made.__getitem__, stamps))]
        known = self._begun.get
        begun = [known(stamp[:10]) or self._remember(stamp[:10]) for stamp in stamps]
        rests = [stamp[10:].rstrip(b"0") for stamp in stamps]
        if not all(rests):
            begun = [before if rest else before[:-1] for before, rest in zip(begun, rests, strict=True)]
        return [begun, rests, [b'Z",'] * len(stamps)]

    def of_numbers(self, times: tuple[int, ...]) -> list[Column]:
        """The same for any times (ns since 1970)."""
        stamps = to_json(times)[1:-1].split(b",")
        if are_digits(stamps):
            return self.columns(stamps)
        return [list(map(self.reading, times))]

    def _joined(self, second: bytes, rest: bytes) -> bytes:
        begun = self._begun.get(second) or self._remember(second)
        return begun + rest + b'Z",' if rest else begun[:-1] + b'Z",'

    def _remember(self, second: bytes) -> bytes:
        if len(self._begun) >= _MAX_SECONDS:
            self._begun.clear()
        begun = self._begun[second] = _begin(int(second))
        return begun


def are_digits(stamps: list[bytes]) -> bool:
    """Whether each of these is nineteen digits, as `Stamps.columns` has to have them."""
    return set(map(len, stamps)) == {_DIGITS} and b"".join(stamps).isdigit()


def join_columns(columns: list[Column]) -> bytes:
    """The rows of columns of the same length, one after the other."""
    width, height = len(columns), len(columns[0])
    cells = [b""] * (width * height)
    for number, column in enumerate(columns):
        cells[number::width] = column
    return b"".join(cells)


def _begin(second: int) -> bytes:
    if not _FIRST_SECOND <= second < contract.EPOCH_LIMIT:
        raise LineError("the time is outside of the years 1 to 9999; see the parameter precision")
    return f'{{"ts":"{(_EPOCH + timedelta(seconds=second)).isoformat()}.'.encode()
