"""Files that the log of a table names and that can't be read. Only the log says what they hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from hub_jobs.tables.delta import Table
from hub_jobs.tables.parquet_reading import UnreadableError
from hub_jobs.tables.ranges import Range
from hub_jobs.tables.scan import files
from hub_jobs.times import micros

_WHERE: Final = {
    "bronze": ("stream", "created", "seq", "domain", "run", "n", "arrived"),
    "readings": ("domain", "run", "n", "arrived", "ts", "source_seq"),
    "quarantine": ("stream", "created", "seq", "domain", "run", "n", "arrived"),
    "seen": ("space",),
}
"""Columns whose bounds say which rows of a table are concerned."""

Bounds = Mapping[str, tuple[Any, Any]]


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file that can't be read, and what the log says of it."""

    table: str
    name: str
    fault: str
    rows: int
    bounds: Bounds
    """The least and the greatest value of some columns."""

    def __str__(self) -> str:
        bounds = ", ".join(f"{name} {_span(*ends)}" for name, ends in self.bounds.items())
        named = f"{self.table}: file {self.name} can't be read: {self.fault}"
        if self.table == "seen":
            return named
        return (
            f"{named}. By the table's log it holds {self.rows} rows ({bounds}); nothing else is known of "
            "them, so a loss can't be excluded"
        )

    def may_hold(self, **values: Any) -> bool:
        """Whether a row with these values may be in the file."""
        return all(_within(self.bounds.get(name), value) for name, value in values.items())

    def moments(self) -> Range:
        """When its rows arrived at the hub, in microseconds since 1970, as far as is known."""
        first, last = self.bounds.get("arrived", (None, None))
        return (0, -1) if first is None else (micros(first), micros(last))

    @property
    def sequences(self) -> Range:
        """The sequences of the hub's stream that a file of bronze holds, as far as is known."""
        first, last = self.bounds.get("seq", (1, 0))
        return first, last

    def as_json(self) -> dict[str, Any]:
        """The file as it stands in a report."""
        bounds = {name: [_text(end) for end in ends] for name, ends in self.bounds.items()}
        return {
            "table": self.table,
            "file": self.name,
            "fault": self.fault,
            "rows": self.rows,
            "bounds": bounds,
        }


def put_aside(table: Table, error: UnreadableError) -> Unreadable:
    """Have a table be read without a file from here on; what its log says of that. Raises as `described`."""
    found = described(table, error)
    table.aside.add(error.at.name)
    return found


def described(table: Table, error: UnreadableError) -> Unreadable:
    """What the log of a table says of a file. Raises the error where the file is only not given out: whether
    it is damaged is not known then."""
    if not error.damaged:
        raise error
    every = files(table)
    (row,) = [entry for entry in every.to_pylist() if entry["path"] == error.at.name]
    bounds = {
        name: (row[f"min.{name}"], row[f"max.{name}"])
        for name in _WHERE[table.name]
        if row.get(f"min.{name}") is not None
    }
    return Unreadable(table.name, error.at.name, error.fault, row["num_records"] or 0, bounds)


def _within(ends: tuple[Any, Any] | None, value: Any) -> bool:
    return value is not None and ends is not None and bool(ends[0] <= value <= ends[1])


def _span(first: Any, last: Any) -> str:
    return _text(first) if first == last else f"{_text(first)} to {_text(last)}"


def _text(value: Any) -> str:
    return value.isoformat(timespec="seconds") if isinstance(value, datetime) else str(value)
