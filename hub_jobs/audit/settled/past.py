"""Stores settled data in the table `settled`. Each audit replaces all in one commit, so a killed audit leaves
the data of the audit before it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from agent.contract import ContractError, Doubt, parse_ledger
from hub_jobs.audit import ledgers
from hub_jobs.audit.ledgers import EvictedRange, LedgerRecords, LostEnd, Origin, Source, Unusable
from hub_jobs.audit.rows.hours import Hour
from hub_jobs.audit.rows.pieces import Past, UnsettledError
from hub_jobs.audit.settled.files import TableMark
from hub_jobs.tables.delta import Table
from hub_jobs.tables.parquet import write_rows
from hub_jobs.tables.parquet_reading import UnreadableError, fitted
from hub_jobs.tables.places import Place
from hub_jobs.tables.scan import rows
from hub_jobs.tables.schemas import SETTLED
from hub_jobs.tables.spaces import numbers_in
from hub_jobs.times import HOUR, at_micros, micros

_COUNTS: Final = ("in_bronze", "late", "in_readings", "quarantined", "dead")
_SETTLED_UNTIL: Final = "settled"
"""The table's transaction: everything before this hour since 1970 is settled."""
_SHOWN_HOURS: Final = 48
"""Hours that the fleet page shows per leaf, whatever their age."""

Row = dict[str, Any]


class _Claims(msgspec.Struct):
    """All ledger claims as JSON: items of the mappings of `LedgerRecords`."""

    discarded: list[tuple[Origin, set[EvictedRange]]]
    origins: list[tuple[Source, set[Origin]]]
    streams: list[tuple[Origin, int]]
    tails: list[tuple[Origin, int, int, int, list[tuple[Source, ledgers.Place]]]]
    unusable: list[Unusable]
    doubts: list[tuple[ledgers.Run, list[Doubt]]]


def read(table: Table) -> tuple[Past, dict[str, TableMark]]:
    """Return the settled data and the table versions below it. Raises `UnsettledError` for an unreadable
    file.
    """
    try:
        held = rows(table, SETTLED.names)
    except UnreadableError as error:
        raise UnsettledError(f"the table `settled` can't be read: {error}") from error
    if not held.num_rows:
        return Past(), {}
    try:
        return _decoded(held)
    except (ValueError, TypeError, KeyError, IndexError, ContractError) as error:
        raise UnsettledError(f"the table `settled` is not as it was written: {error}") from error


def marks_of(table: Table | None) -> tuple[int, dict[str, TableMark]]:
    """Return the settled moment (0 for none) and the table versions below it. Raises as `read`."""
    if settled_until(table) == 0 or table is None:
        return 0, {}
    try:
        held = rows(table, ["kind", "until", "space", "detail"], [("kind", "=", "table")]).to_pylist()
        marks = {row["space"]: TableMark(*json.loads(row["detail"])) for row in held}
        return (micros(held[0]["until"]), marks) if held else (0, {})
    except (OSError, ValueError, TypeError) as error:
        raise UnsettledError(f"the table `settled` can't be read: {error}") from error


def save(lake: Place, table: Table, past: Past, marks: Mapping[str, TableMark]) -> None:
    """Replace the settled data. Raises `ConflictError`."""
    files = write_rows(lake, table.name, _encoded(past, marks))
    table.commit(files, {_SETTLED_UNTIL: past.until // HOUR}, replace=True)


def settled_until(table: Table | None) -> int:
    """Return the settled moment in microseconds since 1970."""
    return 0 if table is None else (table.offset(_SETTLED_UNTIL) or 0) * HOUR


def hours_of(past: Past, hours: Sequence[Hour], since: datetime) -> Iterator[Hour]:
    """Yield settled counts of the given hours, of hours from `since`, and of each domain's last two days."""
    held = past.hours.select(["domain", "class", "hour", *_COUNTS])
    if not held.num_rows:
        return
    moments = held["hour"].cast(pa.int64()).to_numpy()
    domains = held["domain"].combine_chunks().dictionary_encode("encode").indices.to_numpy()
    last = np.zeros(int(domains.max()) + 1, np.int64)
    np.maximum.at(last, domains, moments)
    recent = moments >= np.minimum(micros(since), last[domains] - _SHOWN_HOURS * HOUR)
    for row in held.filter(pa.array(recent)).to_pylist():
        yield _hour_of(row)
    wanted = {(hour.domain, hour.cls, hour.hour) for hour in hours}
    if wanted:
        first = pa.scalar(min(hour.hour for hour in hours))
        older = pc.and_(pc.greater_equal(held["hour"], first), pa.array(~recent))
        for row in held.filter(older).to_pylist():
            if (row["domain"], row["class"], row["hour"]) in wanted:
                yield _hour_of(row)


def _hour_of(row: Row) -> Hour:
    return Hour(row["domain"], row["class"], row["hour"], **{name: row[name] for name in _COUNTS})


def with_hours(past: Past, added: Iterable[Hour]) -> pa.Table:
    """Add counts to the settled hours."""
    more = [
        {"kind": "hour", "domain": hour.domain, "class": hour.cls, "hour": hour.hour}
        | {name: getattr(hour, name) for name in _COUNTS}
        for hour in added
    ]
    keys = ["domain", "class", "hour"]
    every = pa.concat_tables([past.hours, pa.Table.from_pylist(more, SETTLED)])
    summed = every.group_by(keys).aggregate([(name, "sum") for name in _COUNTS])
    return summed.rename_columns([*keys, *_COUNTS])


def _encoded(past: Past, marks: Mapping[str, TableMark]) -> pa.Table:
    until = at_micros(past.until)
    found: list[Row] = [
        {"kind": "table", "space": name, "detail": json.dumps(mark)} for name, mark in marks.items()
    ]
    found += [
        {"kind": "rows", "space": "/".join(history), "last": count} for history, count in past.rows.items()
    ]
    for (domain, cls, run), counts in past.runs.items():
        findings = past.findings.get((domain, cls, run))
        if findings or any(counts.values()):
            text = json.dumps(findings) if findings else None
            found.append(
                {"kind": "run", "domain": domain, "class": cls, "run": run, "detail": text, **counts}
            )
    for (domain_, cls_), counts in past.classes.items():
        found.append({"kind": "direct", "domain": domain_, "class": cls_, **counts})
    found += _of_records(past.records)
    ranges = [
        {"kind": "range", "space": space, "first": first, "last": last}
        for space, spans in past.ranges.spaces.items()
        for first, last in spans
    ]
    every = pa.concat_tables([pa.Table.from_pylist(found + ranges, SETTLED), fitted(past.hours, SETTLED)])
    same = {
        "kind": pc.fill_null(every["kind"], "hour"),
        "until": pa.array([until] * every.num_rows, SETTLED.field("until").type),
    }
    return pa.table([same.get(name, every[name]) for name in SETTLED.names], schema=SETTLED)


def _of_records(records: LedgerRecords) -> Iterator[Row]:
    for kind, by_run in (("ledger", records.newest), ("naming", records.naming)):
        for run, ledger in by_run.items():
            if kind == "ledger" or ledger != records.newest[run]:
                yield {"kind": kind, "detail": ledger.encode().decode()}
    lost = records.lost
    claims = _Claims(
        list(records.discarded.items()),
        list(records.origins.items()),
        list(lost.streams.items()),
        [(*tail, list(places.items())) for tail, places in lost.tails.items()],
        records.first_unusable(),
        list(records.doubts.items()),
    )
    yield {"kind": "claims", "detail": msgspec.json.encode(claims, order="deterministic").decode()}


def _decoded(held: pa.Table) -> tuple[Past, dict[str, TableMark]]:
    by_kind = {
        kind: held.filter(pc.equal(held["kind"], kind)) for kind in pc.unique(held["kind"]).to_pylist()
    }

    def of(kind: str) -> list[Row]:
        return by_kind[kind].to_pylist() if kind in by_kind else []

    runs = of("run")
    hours = by_kind.get("hour", SETTLED.empty_table())
    past = Past(
        until=micros(held["until"][0].as_py()),
        records=_records(of("ledger"), of("naming"), of("claims")[0]["detail"]),
        ranges=numbers_in(by_kind.get("range", SETTLED.empty_table())),
        rows=Counter({_history(row["space"]): row["last"] for row in of("rows")}),
        runs={(row["domain"], row["class"], row["run"]): _counts(row) for row in runs},
        findings={
            (row["domain"], row["class"], row["run"]): json.loads(row["detail"])
            for row in runs
            if row["detail"]
        },
        classes={(row["domain"], row["class"]): _counts(row) for row in of("direct")},
        hours=hours,
    )
    return past, {row["space"]: TableMark(*json.loads(row["detail"])) for row in of("table")}


def _history(name: str) -> tuple[str, str]:
    stream, _, created = name.partition("/")
    return stream, created


def _counts(row: Row) -> dict[str, int]:
    return {name: row[name] or 0 for name in _COUNTS if name != "late"}


def _records(newest: Iterable[Row], naming: Iterable[Row], claims: str) -> LedgerRecords:
    found = LedgerRecords()
    for row in newest:
        ledger = parse_ledger(row["detail"])
        run = (ledger.domain, ledger.cls, ledger.run)
        found.newest[run] = found.naming[run] = ledger
    for row in naming:
        ledger = parse_ledger(row["detail"])
        found.naming[ledger.domain, ledger.cls, ledger.run] = ledger
    claimed = msgspec.json.decode(claims, type=_Claims)
    found.discarded, found.origins = dict(claimed.discarded), dict(claimed.origins)
    found.lost.streams = dict(claimed.streams)
    for origin, kept, last, at, places in claimed.tails:
        found.lost.tails[LostEnd(origin, kept, last, at)] = dict(places)
    found.unusable = claimed.unusable
    found.doubts = dict(claimed.doubts)
    return found
