"""Where lines end: in a stream that comes in pieces, and in a file that grows. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from agent import contract


class LineCutter:
    """Cuts a stream into whole lines of at most `longest` bytes, newline included. Skips longer ones and
    counts them in `too_long`; holds no more than `longest` bytes of an unfinished line."""

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
        """The last line, where the stream ended without its newline, which is added; empty otherwise."""
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
        begin = 0
        while len(lines) - begin > self._longest:
            begin = lines.rfind(b"\n", begin, begin + self._longest) + 1
            if not begin:
                return False
        return True

    def _without_long(self, lines: bytes) -> bytes:
        ended = [line + b"\n" for line in lines[:-1].split(b"\n")]
        short = [line for line in ended if len(line) <= self._longest]
        self.too_long += len(ended) - len(short)
        return b"".join(short)


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """What is taken at a time: at most `bytes` and `lines`, but always one line where there is one. `line` is
    the longest line in bytes, newline included, and how much is read at once; a longer one is not waited
    for."""

    line: int = contract.MAX_BATCH_BYTES
    bytes: int = contract.MAX_BATCH_BYTES
    lines: int = contract.MAX_BATCH_READINGS


class FileCut(NamedTuple):
    """What to make of bytes read at an offset: the lines are `data[start:stop]`, the next read begins at
    `stop`. `skipping` says that it then begins inside a line that is too long, `too_long` that one was
    met."""

    start: int
    stop: int
    skipping: bool = False
    too_long: bool = False


def cut_file(data: bytes, limits: ReadLimits, *, skipping: bool = False, last: bool = False) -> FileCut:
    """Find the whole lines at the beginning of `data`, which holds `limits.line` bytes or all there is.
    `skipping` as the cut before said. `last` says that nothing will be appended any more: what then stands at
    the end without a newline is a line too."""
    start = _hole(data)
    if skipping:
        start = data.find(b"\n") + 1
        if not start:
            return FileCut(len(data), len(data), skipping=True)
    stop = data.rfind(b"\n", start, start + limits.bytes) + 1 or data.find(b"\n", start) + 1
    if not stop:
        if len(data) - start >= limits.line:
            return FileCut(len(data), len(data), skipping=True, too_long=True)
        return FileCut(start, len(data) if last else start)
    if data.count(b"\n", start, stop) > limits.lines:
        stop -= len(data[start:stop].split(b"\n", limits.lines)[-1])
    return FileCut(start, stop)


def _hole(data: bytes) -> int:
    """How many NULs lead: a writer that does not append goes on at its own offset after a truncation, and the
    file then has a hole before it."""
    return len(data) - len(data.lstrip(b"\0")) if data.startswith(b"\0") else 0
