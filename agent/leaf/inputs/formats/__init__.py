"""The formats of lines that an input may take: NDJSON, or Influx line protocol. A parser parts good lines
from bad ones, for senders that cannot be sent a whole body back; and lines are cut from a stream that comes
in pieces, and from a file that grows. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

from msgspec import Struct

from agent import contract
from agent.base.wait import Pacer
from agent.leaf.inputs.formats.ndjson import split_slices
from agent.leaf.inputs.formats.reading_decoder import LARGE_LINE

if TYPE_CHECKING:
    from agent.leaf.inputs.formats.line_cache import LineCache

Format = Literal["ndjson", "influx"]
Precision = Literal["ns", "us", "ms", "s", "m", "h"]
LEAST_LINE: Final = 256
MAX_LINE: Final = LARGE_LINE
"""Bytes of a line that an input can be set to take."""
_BLOCK: Final = 8 * 1024
"""Bytes of line protocol that are parsed at a time: half a millisecond, and 15 ms where each two are a bad
line."""
_MAX_READINGS: Final = 4 * 2**20
"""Bytes that the readings of a line may have: one of many fields repeats its tags in each reading."""


class Parsed(Struct, frozen=True):
    """The good lines of a block as NDJSON of `count` readings, and its bad lines."""

    payload: bytes
    count: int
    bad: tuple[tuple[int, str], ...] = ()
    """The offset of each bad line in the block, and why it is bad."""


class LineParser(Protocol):
    """Parses the lines of one format."""

    self_ending: bool
    """Whether a line that was cut off can't pass for a whole one."""

    def parts(self, lines: bytes, now_ns: int) -> Iterator[Parsed]:
        """The lines of a block that arrived at `now_ns` (ns since 1970), in parts of a few milliseconds; the
        offsets of bad lines count from the beginning of the block."""


def make_parser(kind: Format, domain: str, *, precision: Precision, device_tag: str) -> LineParser:
    """The parser of a format; `precision` and `device_tag` are for line protocol."""
    return _NdjsonParser(domain) if kind == "ndjson" else _InfluxParser(domain, precision, device_tag)


async def parse_lines(parser: LineParser, lines: bytes, now_ns: int) -> Parsed:
    """Parse a block, and give way to the rest of the agent between its parts."""
    parts: list[Parsed] = []
    pacer = Pacer()
    for part in parser.parts(lines, now_ns):
        parts.append(part)
        await pacer.give_way()
    return join_parsed(parts)


def split_valid(lines: bytes, domain: str, now_ns: int) -> Parsed:
    """Part the good lines of NDJSON from bad ones. `now_ns` (ns since 1970) and `domain` fill in what a line
    leaves out."""
    return join_parsed(list(split_valid_parts(lines, domain, now_ns)))


def split_valid_parts(lines: bytes, domain: str, now_ns: int) -> Iterator[Parsed]:
    """Like `split_valid`, in parts of a few milliseconds."""
    for good, bad in split_slices(lines, domain, now_ns):
        yield Parsed(good.payload, good.count, tuple(bad))


def join_parsed(parts: list[Parsed]) -> Parsed:
    """Parts as one."""
    if len(parts) == 1:
        return parts[0]
    return Parsed(
        b"".join(part.payload for part in parts),
        sum(part.count for part in parts),
        tuple(bad for part in parts for bad in part.bad),
    )


class _NdjsonParser:
    self_ending = True

    def __init__(self, domain: str) -> None:
        self._domain = domain

    def parts(self, lines: bytes, now_ns: int) -> Iterator[Parsed]:
        return split_valid_parts(lines, self._domain, now_ns)


class _InfluxParser:
    self_ending = False

    def __init__(self, domain: str, precision: Precision, device_tag: str) -> None:
        self._domain, self._precision, self._device_tag = domain, precision, device_tag
        self._cache: LineCache | None = None

    def parts(self, lines: bytes, now_ns: int) -> Iterator[Parsed]:
        # Imported here, so that an agent without line protocol does not hold it in memory.
        from agent.leaf.inputs.formats.line_cache import LineCache

        if self._cache is None:
            self._cache = LineCache(self._domain, self._device_tag)
        for offset, block in _blocks(lines, _BLOCK):
            yield self._parse(self._cache, block, offset, now_ns)

    def _parse(self, cache: LineCache, block: bytes, offset: int, now_ns: int) -> Parsed:
        from agent.leaf.inputs.formats.line_cache import PRECISIONS
        from agent.leaf.inputs.formats.line_protocol import Parsing

        # Text that is open at the end of its line must not take in the lines that follow.
        parsing = Parsing(block, cache, PRECISIONS[self._precision], now_ns, _MAX_READINGS, apart=True)
        while parsing.step():
            pass
        reasons = {number - 1: reason for number, reason in parsing.bad}
        bad = _by_offset(block.split(b"\n"), reasons, offset) if reasons else ()
        return Parsed(parsing.payload, parsing.count, bad)


def _by_offset(rows: list[bytes], reasons: dict[int, str], offset: int) -> tuple[tuple[int, str], ...]:
    """The bad rows by offset instead of number; the first row is at `offset`."""
    bad = []
    for number, row in enumerate(rows):
        if number in reasons:
            bad.append((offset, reasons[number]))
        offset += len(row) + 1
    return tuple(bad)


def _blocks(lines: bytes, size: int) -> Iterator[tuple[int, bytes]]:
    """Whole lines of about `size` bytes at a time, with their offset."""
    begin = 0
    while begin < len(lines):
        end = lines.rfind(b"\n", begin, begin + size) + 1 or lines.find(b"\n", begin) + 1 or len(lines)
        yield begin, lines[begin:end]
        begin = end


class LineCutter:
    """Cuts a stream into whole lines of at most `longest` bytes, newline included. Skips longer ones and
    counts them in `too_long`; holds no more than `longest` bytes of an unfinished line."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._rest = bytearray()
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
            self._keep(data)
            return b""
        lines = bytes(self._rest) + data[:end] if self._rest else data[:end]
        self._rest = bytearray()
        self._keep(data[end:])
        return lines if self._fits(lines) else self._without_long(lines)

    def end(self) -> bytes:
        """The last line, where the stream ended without its newline, which is added; empty otherwise."""
        rest, self._rest = bytes(self._rest), bytearray()
        return rest + b"\n" if rest else b""

    def _keep(self, more: bytes) -> None:
        if len(self._rest) + len(more) < self._longest:
            self._rest += more
            return
        self._rest, self._skipping = bytearray(), True
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


class ReadLimits(Struct, frozen=True):
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
    start = data.find(b"\n") + 1 if skipping else 0
    if skipping and not start:
        return FileCut(len(data), len(data), skipping=True)
    stop = data.rfind(b"\n", start, start + limits.bytes) + 1 or data.find(b"\n", start) + 1
    if not stop:
        if len(data) - start >= limits.line:
            return FileCut(len(data), len(data), skipping=True, too_long=True)
        return FileCut(start, len(data) if last else start)
    if data.count(b"\n", start, stop) > limits.lines:
        stop -= len(data[start:stop].split(b"\n", limits.lines)[-1])
    return FileCut(start, stop)
