"""Converts readings and bad lines to Arrow rows of `readings` and `quarantine`, the third step of refine.
Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from agent.contract import ContractError
from hub_jobs.refine.clocks import Corrections
from hub_jobs.refine.columns import LineColumns, coded, columns
from hub_jobs.refine.line_types import ReadingLine
from hub_jobs.refine.lines import Slice, checked, decode_content, recheck
from hub_jobs.refine.messages import (
    BatchText,
    BronzeMessage,
    QuarantinedError,
    QuarantineReason,
    message_of,
    parse_message,
)
from hub_jobs.refine.moments import Mask
from hub_jobs.refine.plain_batches import PlainBatches
from hub_jobs.refine.plain_lines import shape_of
from hub_jobs.refine.reading_rows import LineNumbers, reading_rows
from hub_jobs.tables.schemas import QUARANTINE, READINGS, TIME

CHUNK_ROWS: Final = 65_536
"""Readings per conversion and row group; measured as the best size."""
_CHUNK_BYTES: Final = 32 * 1024**2
"""Most bytes of lines per conversion."""
EXCERPT_BYTES: Final = 1024
_DETAIL_CHARS: Final = 500


class QuarantineEntry(NamedTuple):
    """An entry for quarantine; `line` is None for the whole message."""

    message: BronzeMessage
    line: int | None
    reason: QuarantineReason
    detail: str
    excerpt: bytes
    place: str | None = None


@dataclass(slots=True)
class _Part:
    """Rows of one message in a chunk."""

    message: BronzeMessage
    lines: Slice
    numbers: LineNumbers

    @staticmethod
    def of(message: BronzeMessage, lines: Slice) -> _Part:
        numbers = np.array(lines.numbers or (), dtype=np.int32)
        if lines.numbers is None:
            numbers = np.arange(lines.first, lines.first + len(lines.rows), dtype=np.int32)
        return _Part(message, lines, numbers)

    @property
    def rows(self) -> list[ReadingLine]:
        return self.lines.rows

    def line(self, at: int) -> bytes:
        return self.lines.text.split(b"\n")[int(self.numbers[at]) - self.lines.first]


class Refiner:
    """Converts rows of bronze to Arrow tables of readings, one per row group.

    Other content goes to `quarantined`, which the caller empties.
    """

    def __init__(self, corrections: Corrections | None = None, chunk_rows: int = CHUNK_ROWS) -> None:
        self.quarantined: list[QuarantineEntry] = []
        self._corrections = corrections or {}
        self._chunk_rows = chunk_rows
        self._plain = PlainBatches()
        self._parts: list[_Part] = []
        self._size = self._bytes = 0

    def add(self, row: dict[str, Any]) -> list[pa.Table]:
        """Add a row of bronze (`arrived` in microseconds) and return full chunks."""
        done: list[pa.Table] = []
        try:
            message, content = parse_message(row)
        except QuarantinedError as error:
            self.quarantine(row, error.reason, str(error))
            return done
        if isinstance(content, BatchText) and (shape := shape_of(content)) and self._plain.takes(shape):
            self._plain.add(shape, (message, content))
            self._count(content.lines, content.text)
            return [self.drain()] if self._is_full() else done
        for lines in decode_content(content) if content is not None else ():
            self._add_lines(message, lines)
            if self._is_full():
                done.append(self.drain())
        return done

    def quarantine(self, row: dict[str, Any], reason: QuarantineReason, detail: str) -> None:
        """Quarantine a whole row of bronze."""
        excerpt = (row["payload"] or b"")[:EXCERPT_BYTES]
        self.quarantined.append(QuarantineEntry(message_of(row), None, reason, detail, excerpt))

    def drain(self) -> pa.Table:
        """Return the gathered readings."""
        plain, left = self._plain.drain(self._corrections)
        for message, content in left:
            for lines in decode_content(content):
                self._add_lines(message, lines)
        others = self._drain_parts()
        self._size = self._bytes = 0
        if not plain.num_rows:
            return others
        return _joined(plain, others) if others.num_rows else plain

    def _drain_parts(self) -> pa.Table:
        parts, self._parts = self._parts, []
        given = _columns(parts)
        if _are_in_doubt(parts, given):
            parts = self._checked(parts)
            given = _columns(parts)
        table, wrong = _table(parts, given, self._corrections), given.wrong
        if not wrong.any():
            return table
        repaired = self._recheck(parts, wrong)
        table = table.filter(pa.array(~wrong))
        if repaired:
            again = _columns(repaired)
            for part in (repaired[at] for at in np.flatnonzero(again.wrong).tolist()):
                self._quarantine_line(part.message, int(part.numbers[0]), part.line(0), _NO_MOMENT)
            rows = _table(repaired, again, self._corrections)
            table = _joined(table, rows.filter(pa.array(~again.wrong)))
        return table

    def _checked(self, parts: Sequence[_Part]) -> list[_Part]:
        """Recheck parts with possibly repeated fields by the reference."""
        kept = []
        for part in parts:
            if part.lines.quotes is not None and part.lines.quotes != _columns([part]).quotes:
                lines = checked(part.lines)
                self._quarantine_bad(part.message, lines)
                part = _Part.of(part.message, lines)
            if part.rows:
                kept.append(part)
        return kept

    def _add_lines(self, message: BronzeMessage, lines: Slice) -> None:
        self._quarantine_bad(message, lines)
        if lines.rows:
            self._parts.append(_Part.of(message, lines))
            self._count(len(lines.rows), lines.text)

    def _count(self, size: int, text: bytes) -> None:
        self._size += size
        self._bytes += len(text)

    def _is_full(self) -> bool:
        return self._size >= self._chunk_rows or self._bytes >= _CHUNK_BYTES

    def _quarantine_bad(self, message: BronzeMessage, lines: Slice) -> None:
        for bad in lines.bad:
            self._quarantine_line(message, bad.number, bad.text, bad.reason, bad.place)

    def _quarantine_line(
        self, message: BronzeMessage, line: int, text: bytes, detail: str, place: str | None = None
    ) -> None:
        reason = (
            QuarantineReason.DIRECT
            if message.n is None
            else QuarantineReason.LINE
            if place is None
            else QuarantineReason.DEAD
        )
        short = detail[:_DETAIL_CHARS], text[:EXCERPT_BYTES]
        self.quarantined.append(QuarantineEntry(message, line, reason, *short, place))

    def _recheck(self, parts: list[_Part], wrong: Mask) -> list[_Part]:
        """Recheck doubtful rows by the reference, one per part, and quarantine rejected ones."""
        sizes = np.array([len(part.rows) for part in parts])
        ends = np.cumsum(sizes)
        repaired = []
        for at in np.flatnonzero(wrong).tolist():
            index = int(np.searchsorted(ends, at, side="right"))
            part = parts[index]
            inside = at - int(ends[index] - sizes[index])
            text, number = part.line(inside), int(part.numbers[inside])
            try:
                line = recheck(text, part.rows[inside], direct=part.message.n is None)
            except ContractError as error:
                self._quarantine_line(part.message, number, text, str(error))
            else:
                repaired.append(_Part.of(part.message, Slice(number, text, [line])))
        return repaired


_NO_MOMENT: Final = "ts is not within the years 1 to 9999 in UTC"


def _are_in_doubt(parts: Sequence[_Part], given: LineColumns) -> bool:
    unchecked = [part for part in parts if part.lines.quotes is not None]
    if not unchecked:
        return False
    quotes = given.quotes if len(unchecked) == len(parts) else _columns(unchecked).quotes
    return quotes != sum(part.lines.quotes or 0 for part in unchecked)


def _columns(parts: Sequence[_Part]) -> LineColumns:
    return columns(list(chain.from_iterable(part.rows for part in parts)))


def _table(parts: Sequence[_Part], lines: LineColumns, corrections: Corrections) -> pa.Table:
    return reading_rows([(part.message, part.numbers) for part in parts], lines, corrections)


def _joined(table: pa.Table, rows: pa.Table) -> pa.Table:
    """Concatenate tables. Arrow does not unify dictionaries within tags, so they are coded again."""
    at = READINGS.names.index("tags")
    plain = [
        one.set_column(at, "tags", one["tags"].cast(READINGS.field("tags").type)) for one in (table, rows)
    ]
    both = pa.concat_tables(plain).unify_dictionaries().combine_chunks()
    return both.set_column(at, "tags", coded(both["tags"].chunk(0)) if both.num_rows else both["tags"])


def quarantine_table(entries: Sequence[QuarantineEntry]) -> pa.Table:
    """Return rows of `quarantine`."""
    messages = [entry.message for entry in entries]
    plain = {
        name: pa.array([getattr(message, "cls" if name == "class" else name) for message in messages], kind)
        for name, kind in _QUARANTINED.items()
    }
    own = {
        "line": pa.array([entry.line for entry in entries], pa.int32()),
        "reason": pa.array([str(entry.reason) for entry in entries], pa.string()),
        "detail": pa.array([entry.detail for entry in entries], pa.string()),
        "excerpt": pa.array([entry.excerpt for entry in entries], pa.binary()),
        "arrived": pa.array([message.arrived for message in messages], pa.int64()).cast(TIME),
        "place": pa.array([entry.place for entry in entries], pa.string()),
    }
    return pa.table({**plain, **own}).select(QUARANTINE.names).cast(QUARANTINE)


_QUARANTINED: Final = {
    **dict.fromkeys(("stream", "created", "domain", "class", "run"), pa.string()),
    **dict.fromkeys(("seq", "n", "count"), pa.int64()),
}
