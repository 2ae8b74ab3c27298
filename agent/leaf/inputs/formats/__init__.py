"""Parses and cuts lines of NDJSON or Influx line protocol, separating good lines from bad. No I/O."""

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
"""Largest configurable line in bytes."""
_BLOCK: Final = 8 * 1024
"""Bytes of line protocol parsed at once: half a millisecond, 15 ms for worst-case bad lines."""
_MAX_READINGS: Final = 4 * 2**20
"""Most bytes of one line's readings, which repeat its tags."""


class Parsed(Struct, frozen=True):
    """Good lines of a block as NDJSON of `count` readings, and its bad lines."""

    payload: bytes
    count: int
    bad: tuple[tuple[int, str], ...] = ()
    """Offset and fault of each bad line."""
    no_value: int = 0
    """Members of mapped payloads without a value."""


class LineParser(Protocol):
    def is_whole(self, line: bytes) -> bool:
        """Tell whether a last line without newline can't be a part of one."""

    def parts(self, lines: bytes, now_ns: int) -> Iterator[Parsed]:
        """Yield the parsed lines of a block in parts of a few milliseconds. Bad offsets count from the
        block's start.

        `now_ns` is the arrival in ns since 1970.
        """


def make_parser(kind: Format, domain: str, *, precision: Precision, device_tag: str) -> LineParser:
    """Return the parser of a format; `precision` and `device_tag` apply to line protocol."""
    return _NdjsonParser(domain) if kind == "ndjson" else _InfluxParser(domain, precision, device_tag)


async def parse_lines(parser: LineParser, lines: bytes, now_ns: int) -> Parsed:
    """Parse a block, yielding to the event loop between parts."""
    parts: list[Parsed] = []
    pacer = Pacer()
    for part in parser.parts(lines, now_ns):
        parts.append(part)
        await pacer.give_way()
    return join_parsed(parts)


def split_valid(lines: bytes, domain: str, now_ns: int) -> Parsed:
    """Separate good NDJSON lines from bad. `now_ns` (ns since 1970) and `domain` fill missing fields."""
    return join_parsed(list(split_valid_parts(lines, domain, now_ns)))


def split_valid_parts(lines: bytes, domain: str, now_ns: int) -> Iterator[Parsed]:
    """Do `split_valid` in parts of a few milliseconds."""
    for good, bad in split_slices(lines, domain, now_ns):
        yield Parsed(good.payload, good.count, tuple(bad))


def join_parsed(parts: list[Parsed]) -> Parsed:
    if len(parts) == 1:
        return parts[0]
    return Parsed(
        b"".join(part.payload for part in parts),
        sum(part.count for part in parts),
        tuple(bad for part in parts for bad in part.bad),
        sum(part.no_value for part in parts),
    )


class _NdjsonParser:
    def __init__(self, domain: str) -> None:
        self._domain = domain

    def is_whole(self, line: bytes) -> bool:
        return True  # a part of an object is never valid

    def parts(self, lines: bytes, now_ns: int) -> Iterator[Parsed]:
        return split_valid_parts(lines, self._domain, now_ns)


class _InfluxParser:
    def __init__(self, domain: str, precision: Precision, device_tag: str) -> None:
        self._domain, self._precision, self._device_tag = domain, precision, device_tag
        self._cache: LineCache | None = None

    def is_whole(self, line: bytes) -> bool:
        return False

    def parts(self, lines: bytes, now_ns: int) -> Iterator[Parsed]:
        # Imported here, so that an agent without line protocol does not hold it in memory.
        from agent.leaf.inputs.formats.line_cache import LineCache

        if self._cache is None:
            self._cache = LineCache(self._domain, self._device_tag)
        for offset, block in blocks_of_lines(lines, _BLOCK):
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
    bad = []
    for number, row in enumerate(rows):
        if number in reasons:
            bad.append((offset, reasons[number]))
        offset += len(row) + 1
    return tuple(bad)


def blocks_of_lines(lines: bytes, size: int) -> Iterator[tuple[int, bytes]]:
    """Yield blocks of whole lines of about `size` bytes, with offsets."""
    begin = 0
    while begin < len(lines):
        end = lines.rfind(b"\n", begin, begin + size) + 1 or lines.find(b"\n", begin) + 1 or len(lines)
        yield begin, lines[begin:end]
        begin = end


class LineCutter:
    """Cuts a stream into lines of at most `longest` bytes with newline. Skips longer lines, counted in
    `too_long`.
    """

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._rest = bytearray()
        self._skipping = False
        self.too_long = 0

    @property
    def kept(self) -> int:
        """Bytes of the unfinished line."""
        return len(self._rest)

    def feed(self, data: bytes) -> bytes:
        """Return lines completed by `data`, with newlines."""
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
        """Return the last, unterminated line with an added newline, or b""."""
        rest, self._rest = bytes(self._rest), bytearray()
        return rest + b"\n" if rest else b""

    def _keep(self, more: bytes) -> None:
        if len(self._rest) + len(more) < self._longest:
            self._rest += more
            return
        self._rest, self._skipping = bytearray(), True
        self.too_long += 1

    def _fits(self, lines: bytes) -> bool:
        """Tell whether no line is too long, by one look per `longest` bytes."""
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
    """Reads at most `bytes` and `lines`, but one line at least. `line` is the longest line with newline."""

    line: int = contract.MAX_BATCH_BYTES
    bytes: int = contract.MAX_BATCH_BYTES
    lines: int = contract.MAX_BATCH_READINGS


class FileCut(NamedTuple):
    """Lines are `data[start:stop]`; the next read begins at `stop`.

    `skipping` means that it begins inside an overlong line; `too_long` that one was found.
    """

    start: int
    stop: int
    skipping: bool = False
    too_long: bool = False


def cut_file(data: bytes, limits: ReadLimits, *, skipping: bool = False, last: bool = False) -> FileCut:
    """Find whole lines at the start of `data`, which has `limits.line` bytes or everything.

    `skipping` is from the previous cut. `last` accepts an unterminated last line.
    """
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
