"""From rows of `bronze` to rows of `readings` and `quarantine`. Pure: it holds some rows and hands them out
as Arrow tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from agent.contract import ContractError
from hub_jobs.tables.schemas import QUARANTINE, READINGS, TIME
from hub_jobs.transforms.columns import Mask, devices, tags, times, values
from hub_jobs.transforms.lines import Line, Slice, checked_line
from hub_jobs.transforms.messages import Message, Reason, RefusedError, message_of, slices

CHUNK_ROWS: Final = 65_536
"""Readings converted at once and written as one row group; measured to be the best size."""
EXCERPT_BYTES: Final = 1024
_DETAIL_CHARS: Final = 500


class Refused(NamedTuple):
    """Something for quarantine; `line` is None for the whole message."""

    message: Message
    line: int | None
    reason: Reason
    detail: str
    excerpt: bytes


@dataclass(slots=True)
class _Part:
    """Rows of one message inside a chunk."""

    message: Message
    numbers: Sequence[int]
    rows: list[Line]
    text: bytes
    first: int

    def line(self, at: int) -> bytes:
        """The text of row `at`."""
        return self.text.split(b"\n")[self.numbers[at] - self.first]


class Refiner:
    """Gathers readings until there are enough for a row group; `refused` grows beside them."""

    def __init__(self, chunk_rows: int = CHUNK_ROWS) -> None:
        self.refused: list[Refused] = []
        self._chunk_rows = chunk_rows
        self._parts: list[_Part] = []
        self._size = 0

    def take(self, row: dict[str, Any]) -> list[pa.Table]:
        """Take in one row of bronze (`arrived` in microseconds); gives back full chunks of readings."""
        done: list[pa.Table] = []
        try:
            message, found = slices(row)
        except RefusedError as error:
            self.refuse(row, error.reason, str(error))
            return done
        for one in found:
            self._add(message, one)
            if self._size >= self._chunk_rows:
                done.append(self.drain())
        return done

    def refuse(self, row: dict[str, Any], reason: Reason, detail: str) -> None:
        """Put a whole row of bronze in quarantine."""
        excerpt = row["payload"][:EXCERPT_BYTES]
        self.refused.append(Refused(message_of(row), None, reason, detail, excerpt))

    def drain(self) -> pa.Table:
        """The readings gathered so far."""
        parts, self._parts, self._size = self._parts, [], 0
        table, wrong = _table(parts)
        if not wrong.any():
            return table
        repaired = self._recheck(parts, wrong)
        table = table.filter(pa.array(~wrong))
        if repaired:
            again, lost = _table(repaired)
            for part in (repaired[at] for at in np.flatnonzero(lost).tolist()):
                self._bad(part.message, part.numbers[0], part.line(0), _NO_MOMENT)
            table = pa.concat_tables([table, again.filter(pa.array(~lost))])
        return table

    def _add(self, message: Message, found: Slice) -> None:
        numbers = found.numbers
        if numbers is None:
            numbers = range(found.first, found.first + len(found.rows))  # type: ignore[assignment]
        for bad in found.bad:
            self._bad(message, bad.number, bad.text, bad.reason)
        if found.rows:
            self._parts.append(_Part(message, numbers or (), found.rows, found.text, found.first))
            self._size += len(found.rows)

    def _bad(self, message: Message, line: int, text: bytes, detail: str) -> None:
        reason = Reason.DIRECT if message.n is None else Reason.LINE
        self.refused.append(Refused(message, line, reason, detail[:_DETAIL_CHARS], text[:EXCERPT_BYTES]))

    def _recheck(self, parts: list[_Part], wrong: Mask) -> list[_Part]:
        """The rows in doubt as the reference reads them, one a part; those it refuses are refused."""
        sizes = np.array([len(part.rows) for part in parts])
        ends = np.cumsum(sizes)
        repaired = []
        for at in np.flatnonzero(wrong).tolist():
            index = int(np.searchsorted(ends, at, side="right"))
            part = parts[index]
            inside = at - int(ends[index] - sizes[index])
            text, number = part.line(inside), part.numbers[inside]
            try:
                line = _reread(text, part.rows[inside], direct=part.message.n is None)
            except ContractError as error:
                self._bad(part.message, number, text, str(error))
            else:
                repaired.append(_Part(part.message, [number], [line], text, number))
        return repaired


_NO_MOMENT: Final = "ts is not within the years 1 to 9999 in UTC"


def _reread(text: bytes, line: Line, *, direct: bool) -> Line:
    """A row in doubt by the reference; a direct message with what its subject says put in."""
    return checked_line(msgspec.json.encode(line) if direct else text)


def _table(parts: Sequence[_Part]) -> tuple[pa.Table, Mask]:
    """The rows of `readings`, and which of them have a time or tags that are none."""
    rows = [line for part in parts for line in part.rows]
    messages = [part.message for part in parts]
    sizes = np.array([len(part.rows) for part in parts], dtype=np.int64)
    owner = pa.array(np.repeat(np.arange(len(parts)), sizes))

    def spread(name: str, kind: pa.DataType) -> pa.Array:
        return pa.array([getattr(message, name) for message in messages], kind).take(owner)

    stamps, own, wrong_times = times(rows)
    default = np.repeat(np.array([message.default_ts for message in messages], dtype=np.int64), sizes)
    moments = pa.array(np.where(own, stamps, default)).cast(TIME)
    column, wrong_tags = tags(rows)
    value, text = values(rows)
    domain = spread("domain", pa.string())
    arrays = {
        "ts": moments,
        "ts_source": pc.if_else(pa.array(own), "device", spread("ts_source", pa.string())),
        "domain": domain,
        "device": devices(rows, domain),
        "metric": pa.array([row.metric for row in rows], pa.string()),
        "value": value,
        "text": text,
        "tags": column,
        "class": spread("cls", pa.string()),
        "run": spread("run", pa.string()),
        "n": spread("n", pa.int64()),
        "index": pa.array([number for part in parts for number in part.numbers], pa.int32()),
        "arrived": spread("arrived", pa.int64()).cast(TIME),
        "event_date": moments.cast(pa.date32()),
        "source_stream": spread("source_stream", pa.string()),
        "source_identity": spread("source_identity", pa.string()),
        "source_seq": spread("source_seq", pa.int64()),
    }
    return pa.table(arrays, schema=READINGS), wrong_times | wrong_tags


def quarantine_table(refused: Sequence[Refused]) -> pa.Table:
    """The rows of `quarantine`."""
    messages = [one.message for one in refused]
    plain = {
        name: pa.array([getattr(message, "cls" if name == "class" else name) for message in messages], kind)
        for name, kind in _QUARANTINED.items()
    }
    own = {
        "line": pa.array([one.line for one in refused], pa.int32()),
        "reason": pa.array([str(one.reason) for one in refused], pa.string()),
        "detail": pa.array([one.detail for one in refused], pa.string()),
        "excerpt": pa.array([one.excerpt for one in refused], pa.binary()),
        "arrived": pa.array([message.arrived for message in messages], pa.int64()).cast(TIME),
    }
    return pa.table({**plain, **own}).select(QUARANTINE.names).cast(QUARANTINE)


_QUARANTINED: Final = {
    **dict.fromkeys(("stream", "created", "domain", "class", "run"), pa.string()),
    **dict.fromkeys(("seq", "n", "count"), pa.int64()),
}
