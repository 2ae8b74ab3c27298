"""Where the lines of a stream end that comes in pieces. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from agent import contract


class Cutter:
    """Parts a stream into whole lines of at most `longest` bytes, newline included. A longer one is passed
    over and counted in `too_long`; no more than `longest` bytes of an unfinished line are kept."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._rest = b""
        self._skipping = False
        self.too_long = 0

    @property
    def kept(self) -> int:
        """Bytes of the line that is not finished."""
        return len(self._rest)

    def feed(self, data: bytes) -> bytes:
        """The lines that `data` finishes, each with its newline."""
        if self._skipping:
            begin = data.find(b"\n") + 1
            if not begin:
                return b""
            data, self._skipping = data[begin:], False
        end = data.rfind(b"\n") + 1
        if not end:
            self._keep(self._rest + data)
            return b""
        lines = self._rest + data[:end]
        self._rest = b""
        self._keep(data[end:])
        return lines if self._fits(lines) else self._without_long(lines)

    def end(self) -> bytes:
        """What stands at the end of the stream without a newline, which it is given; empty when nothing
        does."""
        rest, self._rest = self._rest, b""
        return rest + b"\n" if rest else b""

    def _keep(self, rest: bytes) -> None:
        if len(rest) < self._longest:
            self._rest = rest
            return
        self._rest, self._skipping = b"", True
        self.too_long += 1

    def _fits(self, lines: bytes) -> bool:
        """Whether no line is too long: a look at each stretch of that length, not at each line."""
        place = 0
        while len(lines) - place > self._longest:
            place = lines.rfind(b"\n", place, place + self._longest) + 1
            if not place:
                return False
        return True

    def _without_long(self, lines: bytes) -> bytes:
        every = [line + b"\n" for line in lines[:-1].split(b"\n")]
        short = [line for line in every if len(line) <= self._longest]
        self.too_long += len(every) - len(short)
        return b"".join(short)


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """What is taken at a time: at most `bytes` and `lines`, but always one line where there is one. `line` is
    the longest line in bytes, newline included, and how much is read at once; a longer one is not waited
    for."""

    line: int = contract.MAX_BATCH_BYTES
    bytes: int = contract.MAX_BATCH_BYTES
    lines: int = contract.MAX_BATCH_READINGS


class Cut(NamedTuple):
    """What to make of bytes read at an offset: the lines are `data[start:stop]`, the next read begins at
    `stop`. `skipping` says that it then begins inside a line that is too long, `too_long` that one was
    met."""

    start: int
    stop: int
    skipping: bool = False
    too_long: bool = False


def cut(data: bytes, limits: ReadLimits, *, skipping: bool = False, last: bool = False) -> Cut:
    """Find the whole lines at the beginning of `data`, which holds `limits.line` bytes or all there is.
    `skipping` as the cut before said. `last` says that nothing will be appended any more: what then stands at
    the end without a newline is a line too."""
    start = _hole(data)
    if skipping:
        start = data.find(b"\n") + 1
        if not start:
            return Cut(len(data), len(data), skipping=True)
    stop = data.rfind(b"\n", start, start + limits.bytes) + 1 or data.find(b"\n", start) + 1
    if not stop:
        if len(data) - start >= limits.line:
            return Cut(len(data), len(data), skipping=True, too_long=True)
        return Cut(start, len(data) if last else start)
    if data.count(b"\n", start, stop) > limits.lines:
        stop -= len(data[start:stop].split(b"\n", limits.lines)[-1])
    return Cut(start, stop)


def _hole(data: bytes) -> int:
    """How many NULs lead: a writer that does not append goes on at its own offset after a truncation, and the
    file then has a hole before it."""
    return len(data) - len(data.lstrip(b"\0")) if data.startswith(b"\0") else 0
