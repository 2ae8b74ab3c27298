"""Converts Influx line protocol to NDJSON. No I/O.

    measurement,tag=text field=1.5,other="text" 1790000000000000000

Each field is a reading: metric `<measurement>_<field>`, `ts` from the line or arrival, `device` from one tag
(then no tag) or the domain. Suffixes `i` and `u` mark integers; `u` above 2^63 - 1 becomes a float. Quoted
text may contain newlines. Each line is accepted or refused whole.

Grammar: https://docs.influxdata.com/influxdb/v2/reference/syntax/line-protocol/.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

from agent.leaf.inputs.formats.line_cache import LineCache, take_rows
from agent.leaf.inputs.formats.line_values import (
    LineError,
    PayloadParts,
    plain_string,
    quoted,
    scalar,
    string,
)
from agent.leaf.inputs.formats.ndjson import MAX_COUNTED, MAX_LISTED, BodyTooLargeError

_STEP: Final = 24 * 1024
"""Bytes parsed at once, a millisecond or two."""
_WORTH: Final = 200
"""Bytes from which parsing by column is cheaper, about four short lines."""
_LINES: Final = 500
"""Lines parsed at once; short and bad lines cost most per byte."""
_IDLE: Final = 64 * 1024
"""Bytes of blank lines and comments skipped at once."""
_SHORT: Final = 256
"""Bytes searched first for idle lines."""
_MAX_LINE: Final = 256 * 1024
_NOTHING: Final[Counter[str]] = Counter()
"""Saves small bodies a counter."""
_BLANK_STAMP: Final = [b""]
"""What follows the blank at the end of a line without time."""

_plain = re.compile(rb"-?(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,40})?\Z").match
"""Numbers valid as JSON; finite without exponent."""
_idle = re.compile(rb"(?:[ \r]*+(?:#[^\n]*+)?+\n)*+").match
_blanks = re.compile(rb" *+").match
_key_end = re.compile(rb"(?<!\\)[ \n]").search
_simple = re.compile(rb'([^,= \n\\]++)=(?:"([^"\\]*+)"|([^", \r\n][^, \r\n]*+))').match
"""Most fields: name, and text or value without quotes."""
_field = re.compile(rb"((?:[^,= \n\\]++|\\[,= ]?+)++)=").match
_quoted = re.compile(rb'"([^"\\]*+(?:\\.[^"\\]*+)*+)"', re.DOTALL).match
_bare = re.compile(rb"[^, \r\n]++").match
_end = re.compile(rb" *+\r?+(?:\n|\Z)").match
_stamp = re.compile(rb" ++([^ \r\n]++) *+\r?+(?:\n|\Z)").match
_MAY_BEGIN_IDLE: Final = frozenset((b" ", b"\r", b"\n", b"#"))


class Parsing(PayloadParts):
    """Parses one body in steps; call `step` until False. `limit` bounds the payload in bytes.

    `cache` keeps names between bodies; `unit` is nanoseconds per time step. With `apart` every newline ends a
    line, `limit` bounds one line's readings, and every bad line is listed.
    """

    def __init__(
        self, body: bytes, cache: LineCache, unit: int, now_ns: int, limit: int, *, apart: bool = False
    ) -> None:
        super().__init__()
        self._body = body
        self._cache = cache
        self._unit = unit
        self._room = self._limit = limit
        self._apart = apart
        self._offset = self._reached = self._unended = 0
        self._singly_to = 0
        self._line = 0
        self._stamps = cache.stamps
        self._now_ns, self._arrived = now_ns, b""
        self.count = 0
        """Readings in the payload."""
        self.bad: list[tuple[int, str]] = []
        """Refused lines as (line from 1, reason)."""
        self.more = 0
        """Bad lines beyond the listed."""
        self.left_out: Counter[str] = _NOTHING
        """Bad lines by kind."""
        self.hopeless = False
        """Whether too many bad lines stopped parsing."""

    def step(self) -> bool:
        """Parse some lines and tell whether more follow. Raises `BodyTooLargeError`."""
        body = self._body
        self._skip_idle(len(body))
        begin = self._offset
        stop = body.rfind(b"\n", begin, begin + _STEP) + 1 or body.find(b"\n", begin + _STEP) + 1 or len(body)
        piece = body[begin:stop]
        out: list[bytes] = []
        is_plain = len(piece) <= _STEP and not _may_be_odd(piece)
        by_column = is_plain and len(piece) >= _WORTH and begin >= self._singly_to
        if by_column and self._take_rows(piece):
            return self._has_more()
        self._singly_to = stop
        if not is_plain or b"\n\n" in piece or b"\n#" in piece or b"\n " in piece:
            for _ in range(_LINES):
                self._skip_idle(stop)
                if self._offset >= stop or self.hopeless:
                    break
                end = body.find(b"\n", self._offset) + 1 or len(body)
                line = body[self._offset : end]
                if len(line) > _MAX_LINE or _may_be_odd(line):
                    self._take_line(self._offset, out)
                else:
                    self._take_plain([line.removesuffix(b"\n")], out)
        else:
            self._take_plain(piece.removesuffix(b"\n").split(b"\n", _LINES)[:_LINES], out)
        self.count += len(out)
        self._parts.append(b"".join(out))
        return self._has_more()

    def _arrival(self) -> bytes:
        if not self._arrived:
            self._arrived = self._stamps.machine(self._now_ns)
        return self._arrived

    def _has_more(self) -> bool:
        more = self._offset < len(self._body) and not self.hopeless
        if not more:
            self._body = b""  # its readings may wait to be stored
        return more

    def _skip_idle(self, stop: int) -> None:
        body, begin = self._body, self._offset
        for size in (_SHORT, _IDLE):
            if body[self._offset : self._offset + 1] not in _MAY_BEGIN_IDLE:
                return
            piece = body[begin : min(stop, begin + size)]
            # Blanks by themselves are passed over much faster than by the expression.
            blank = piece.rfind(b"\n", 0, len(piece) - len(piece.lstrip(b" \r\n"))) + 1
            # Python before 3.11.5 also takes the part of one more idle line that fits into the piece.
            passed = blank if (idle := _idle(piece, blank)) is None else piece.rfind(b"\n", 0, idle.end()) + 1
            self._line += piece.count(b"\n", self._offset - begin, passed)
            self._offset = begin + passed

    def _take_rows(self, piece: bytes) -> bool:
        """Take the next lines by column; False, without change, when one needs its own look."""
        room = self._limit if self._apart else self._room
        taken = take_rows(piece, self._cache, self._unit, self._arrival, room)
        if taken is None:
            return False
        payload, count, lines = taken
        self._room -= len(payload)
        self._parts.append(payload)
        self.count += count
        self._offset += len(piece)
        self._line += lines
        return True

    def _take_plain(self, lines: list[bytes], out: list[bytes]) -> None:
        """Take lines without quote, backslash and carriage return."""
        heads, last, ts = self._cache.heads, b"", b""
        written, unit = self._stamps.written, self._unit
        for line in lines:
            if self.hopeless:
                return
            mark = len(out)
            try:
                key, fields, *stamp = line.split(b" ")
                if not stamp or stamp == _BLANK_STAMP:
                    last, ts = b"", self._arrival()
                elif stamp != [last]:
                    (last,) = stamp
                    ts = written(last, unit)
                head = heads.get(key) or self._cache.head(key)
                pairs = fields.split(b",")
                self._claim(len(pairs) * head.cost + len(fields))
                field, tail = head.fields.get, head.tail
                for pair in pairs:
                    raw, _, text = pair.partition(b"=")
                    before = field(raw) or self._cache.field(head, raw)
                    out.append(ts + before + (text if _plain(text) else scalar(text)) + tail)
            except ValueError:  # LineError too
                del out[mark:]
                last = b""
                self._take_line(self._offset, out)
            else:
                self._offset += len(line) + 1
                self._line += 1

    def _take_line(self, begin: int, out: list[bytes]) -> None:
        body, mark = self._body, len(out)
        end = body.find(b"\n", begin) + 1 or len(body)
        self._offset, self._line = end, self._line + 1
        line = body[begin:end].strip(b" \r\n")
        if not line or line.startswith(b"#"):
            return
        try:
            self._reached = begin
            if end - begin > _MAX_LINE:
                raise LineError(f"longer than {_MAX_LINE} bytes", "size")
            self._take_slowly(begin, end, out)
        except LineError as error:
            del out[mark:]
            self._refuse(error)
            if self._reached > end:
                self._go_on(end, body.find(b"\n", self._reached) + 1 or len(body))

    def _take_slowly(self, begin: int, end: int, out: list[bytes]) -> None:
        """Take a line with possible escapes and text, which may contain newlines unless `apart`."""
        body, passed, limit = self._body, end, begin + _MAX_LINE
        if self._apart:
            body, begin, end = body[begin:end].removesuffix(b"\n"), 0, end - begin
        begin = _blanks(body, begin).end()  # type: ignore[union-attr]
        stop = self._end_of_key(body, begin, end, limit)
        key = body[begin:stop]
        head = self._cache.heads.get(key) or self._cache.head(key)
        offset = _blanks(body, stop + 1).end()  # type: ignore[union-attr]
        values = list[bytes]()
        field = self._cache.field
        while True:
            if (pair := _simple(body, offset, limit)) is not None:
                offset = self._reached = pair.end()
                name, text, bare = pair.groups()
                value = scalar(bare) if text is None else plain_string(text)
            else:
                name, raw, offset = self._next_field(body, offset, limit)
                self._reached = offset
                value = string(raw[1]) if raw.re.groups else scalar(raw[0])
            values.append(field(head, name) + value)
            if body[offset : offset + 1] != b",":
                break
            offset += 1
        stamp = None if _end(body, offset) else _stamp(body, offset, offset + 64)
        if stamp is None and not _end(body, offset):
            raise LineError(f"{quoted(body[offset : offset + 40].strip())} is not a time", "time")
        ts = self._arrival() if stamp is None else self._stamps.written(stamp[1], self._unit)
        self._claim(len(values) * head.cost + offset - begin)
        out += [ts + value + head.tail for value in values]
        if not self._apart:
            self._go_on(passed, max(passed, body.find(b"\n", offset) + 1 or len(body)))

    def _end_of_key(self, body: bytes, begin: int, end: int, limit: int) -> int:
        """Return the end of measurement and tags; raises `LineError`. Only in tag text may an escaped newline
        stand.
        """
        key_end = _key_end(body, begin, min(end, limit))
        if key_end is None and end < min(limit, len(body)) and b"," in body[begin:end]:
            # Not from each such line to the same end, for there may be a line for each two bytes.
            key_end = _key_end(body, max(end, self._unended), limit)
            self._unended = limit if key_end is None else key_end.start()
        if key_end is None or key_end[0] == b"\n":
            raise LineError("there is no field")
        return key_end.start()

    def _next_field(self, body: bytes, offset: int, limit: int) -> tuple[bytes, re.Match[bytes], int]:
        """Return a field's name, value match and end."""
        name = _field(body, offset, limit)
        if name is None:
            raise LineError(f"{quoted(body[offset : offset + 40])} is not field=value")
        text = _quoted(body, name.end(), limit) or _bare(body, name.end(), limit)
        if text is None:
            raise LineError(f"field {quoted(name[1])} has no value", "value")
        return name[1], text, text.end()

    def _claim(self, size: int) -> None:
        self._room = (self._limit if self._apart else self._room) - size
        if self._room >= 0:
            return
        if self._apart:
            raise LineError(f"the readings of this line are above {self._limit} bytes", "size")
        raise BodyTooLargeError

    def _go_on(self, passed: int, offset: int) -> None:
        self._line += self._body.count(b"\n", passed, offset)
        self._offset = offset

    def _refuse(self, error: LineError) -> None:
        if not self.left_out:
            self.left_out = Counter()
        self.left_out[error.kind] += 1
        if self._apart or len(self.bad) < MAX_LISTED:
            self.bad.append((self._line, str(error)))
        else:
            self.more += 1
            self.hopeless = self.more >= MAX_COUNTED


def _may_be_odd(lines: bytes) -> bool:
    return b'"' in lines or b"\\" in lines or b"\r" in lines
