"""Where the lines of a stream end that comes in pieces. No I/O."""

from __future__ import annotations


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
