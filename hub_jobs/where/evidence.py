"""Builds the evidence of a proof: counts of a domain and span, with hashes to verify the tables. Read-only.

Row contents are hashed per hour, which survives compaction; file hashes hold until `maintain` merges files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from agent.contract import VERSION
from hub_jobs.audit.rows.hours import moments as moments_of
from hub_jobs.audit.rows.pieces import ScanPart
from hub_jobs.tables.commits import entry_name
from hub_jobs.tables.delta import Table, TableError, open_table
from hub_jobs.tables.parquet_reading import UnreadableError, fitted_groups
from hub_jobs.tables.places import Place
from hub_jobs.tables.scan import file_paths, files, rows
from hub_jobs.tables.spaces import BATCH_KEY, HUB_KEY, SOURCE_KEY, key_of
from hub_jobs.times import HOUR, at_micros, micros
from hub_jobs.where.lake import Lake, Waiting, open_lake
from hub_jobs.where.query import look

MOST_ROWS: Final = 10_000_000
"""Most rows hashed per table, some four minutes of one core."""
_KEYS: Final = (*BATCH_KEY[1:], *SOURCE_KEY)
_LARGE: Final = ("value_array", "value_bytes")
"""Columns of readings hashed only when not null, so that older proofs stay valid."""
_HASHED: Final[Mapping[str, Sequence[str]]] = {
    "bronze": (*_KEYS, "count", "subject", "digest"),
    "readings": (*_KEYS, "index", "ts", "ts_source", "device", "metric", "value", "text", "tags"),
    "quarantine": ("class", "run", "n", "line", *HUB_KEY, "reason", "detail", "excerpt"),
}
"""Columns of a row's content; others are derived or record processing times."""
HourOf = Callable[[Mapping[str, Any]], str | None]
"""A row's hour in the span, None outside."""


class UnknownLeafError(Exception):
    """No table contains the domain; the text names it."""


def evidence(lake: Place, part: ScanPart, made: datetime, by: str) -> dict[str, Any]:
    """Return the evidence as JSON. Raises `UnknownLeafError`, and `TableError`, also for too many rows."""
    try:
        return _evidence(open_lake(lake), part, made, by)
    except (OSError, pa.ArrowException) as error:
        raise TableError(f"the tables in {lake} can't be read: {error}") from error


def _evidence(lake: Lake, part: ScanPart, made: datetime, by: str) -> dict[str, Any]:
    found = look(lake, part, Waiting())
    whole = look(lake, replace(part, since=None, until=None), Waiting()) if part.is_span else found
    if not whole.classes:
        raise UnknownLeafError(f"the tables hold nothing of a leaf {part.domain!r}")
    tables, contents = [], {}
    hours, places = _selected(lake.bronze, part)

    def by_key(row: Mapping[str, Any]) -> str | None:
        return hours.get(key_of(row))

    def in_hub(row: Mapping[str, Any]) -> str | None:
        return places.get(tuple(row[name] for name in HUB_KEY))

    for table in lake.tables(part).existing:
        hour_of = in_hub if table.name == "quarantine" else by_key
        contents[table.name], paths = _contents(table, part, hour_of)
        tables.append(_table(table, paths))
    audit, audited = _audit(lake.path, part)
    tables += [_table(table, []) for table in audited]
    return {
        "v": VERSION,
        "domain": part.domain,
        "from": _text(part.since),
        "to": _text(part.until),
        "made": made.isoformat(timespec="seconds"),
        "by": by,
        "lake": str(lake.path),
        "classes": {cls: asdict(sums) for cls, sums in sorted(found.classes.items())},
        "kept_since": _kept_since(lake, part),
        "lost": found.lost,
        "gaps": whole.gaps,
        "explained": found.explained,
        "reasons": found.reasons,
        "audit": audit,
        "contents": contents,
        "tables": tables,
    }


def _text(moment: int | None) -> str | None:
    return None if moment is None else at_micros(moment).isoformat()


def _kept_since(lake: Lake, part: ScanPart) -> str | None:
    """Return the expiry limit of the span's readings, None without."""
    kept_since = lake.tables(part).kept_since
    aged = kept_since > 0 and (part.since is None or part.since < kept_since)
    return _text(kept_since) if aged else None


def _selected(bronze: Table, part: ScanPart) -> tuple[dict[tuple[Any, ...], str], dict[tuple[Any, ...], str]]:
    """Return the hour of each batch and direct message by key, and by hub place."""
    hours: dict[tuple[Any, ...], str] = {}
    places: dict[tuple[Any, ...], str] = {}
    columns = (*_KEYS, *HUB_KEY, "arrived", "headers", "domain")
    for _, found in _groups(bronze, part, columns):
        moments, _ = moments_of(found)
        named = found.select(["domain", *_KEYS, *HUB_KEY]).to_pylist()
        for row, moment in zip(named, moments.tolist(), strict=True):
            if part.within(moment):
                hour = _text(moment // HOUR * HOUR) or ""
                hours[key_of(row)] = places[tuple(row[name] for name in HUB_KEY)] = hour
        if len(places) > MOST_ROWS:
            raise TableError(f"more than {MOST_ROWS:,} messages: choose a shorter span")
    return hours, places


def _groups(table: Table, part: ScanPart, columns: Sequence[str]) -> Iterator[tuple[Place, pa.Table]]:
    """Yield the domain's rows by row group."""
    schema = pa.schema([table.schema.field(name) for name in dict.fromkeys(columns)])
    for path in file_paths(table, part.where):
        for found in map(part.chosen, fitted_groups(path, schema)):
            if found.num_rows:
                yield path, found


def _contents(table: Table, part: ScanPart, hour_of: HourOf) -> tuple[dict[str, list[Any]], list[Place]]:
    """Return per hour the rows and the SHA-256 of their sorted hashes, and the files with such rows."""
    hashes: dict[str, list[bytes]] = {}
    paths: list[Place] = []
    columns, large = _HASHED[table.name], _LARGE if table.name == "readings" else ()
    for path, found in _groups(table, part, (*columns, *large, "domain")):
        for row in _plain(found.select(["domain", *columns, *large])):
            if (hour := hour_of(row)) is None:
                continue
            values = [row[name] for name in columns]
            values += [row[name] for name in large if row[name] is not None]
            text = json.dumps(values, separators=(",", ":"))
            hashes.setdefault(hour, []).append(hashlib.sha256(text.encode()).digest())
            if paths[-1:] != [path]:
                paths.append(path)
        if sum(map(len, hashes.values())) > MOST_ROWS:
            raise TableError(f"more than {MOST_ROWS:,} rows of {table.name}: choose a shorter span")
    hours = {
        hour: [len(found), hashlib.sha256(b"".join(sorted(found))).hexdigest()]
        for hour, found in sorted(hashes.items())
    }
    return hours, paths


def _plain(found: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield rows as JSON: times in microseconds, bytes as hex, sorted tags."""
    for at, name in enumerate(found.column_names):
        if pa.types.is_timestamp(found.schema.field(name).type):
            found = found.set_column(
                at, name, found[name].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
            )
    for row in found.to_pylist():
        for name, value in row.items():
            if isinstance(value, bytes):
                row[name] = value.hex()
            elif name == "tags" and value is not None:
                row[name] = sorted(map(list, value))
        yield row


def _table(table: Table, paths: Sequence[Place]) -> dict[str, Any]:
    """Return a table's version, log entry and used files."""
    version = int(table.delta.version())
    sizes = files(table)
    known = dict(zip(sizes["path"].to_pylist(), sizes["num_records"].to_pylist(), strict=True))
    return {
        "table": table.name,
        "version": version,
        "entry": file_hash(table.path / "_delta_log" / entry_name(version)),
        "files": [[path.name, known.get(path.name), file_hash(path)] for path in paths],
    }


def file_hash(path: Place) -> str | None:
    """Return a file's SHA-256, None if gone. Raises `UnreadableError`."""
    found = hashlib.sha256()
    try:
        with path.open("rb") if isinstance(path, Path) else path.store.open_input_stream(path.key) as source:
            while piece := source.read(1 << 20):
                found.update(piece)
    except FileNotFoundError:
        return None
    except (OSError, pa.ArrowException) as error:
        raise UnreadableError(path, str(error), damaged=False) from error
    return found.hexdigest()


def _audit(lake: Place, part: ScanPart) -> tuple[dict[str, Any] | None, list[Table]]:
    """Return the newest audit's accounts of the domain and hours of the span."""
    accounts, by_hour = open_table(lake, "audit"), open_table(lake, "audit_hours")
    if accounts is None or by_hour is None:
        return None, []
    names = [name for name in accounts.schema.names if name != "findings"]
    found = rows(accounts, names, part.where)
    if not found.num_rows:
        return None, []
    at = pc.max(found["at"]).as_py()
    newest = found.filter(pc.equal(found["at"], pa.scalar(at, found["at"].type)))
    # An audit says nothing of hours that are settled: what is newest of each hour counts.
    hours: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in sorted(rows(by_hour, by_hour.schema.names, part.where).to_pylist(), key=lambda row: row["at"]):
        if part.within(micros(row["hour"])):
            hours[row["hour"], row["class"]] = row
    chosen = [
        {**row, "at": row["at"].isoformat(), "hour": row["hour"].isoformat()}
        for _, row in sorted(hours.items(), key=lambda item: (item[0][0], str(item[0][1])))
    ]
    told = [
        {name: value for name, value in row.items() if name not in ("at", "domain")}
        for row in newest.to_pylist()
    ]
    return {"at": at.isoformat(), "accounts": told, "hours": chosen}, [accounts, by_hour]


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return sentences on how the tables differ from a proof. Pure."""
    found = [f"{sentence}: only then" for sentence in then["gaps"] if sentence not in now["gaps"]]
    found += [f"{sentence}: only now" for sentence in now["gaps"] if sentence not in then["gaps"]]
    for cls in sorted({*then["classes"], *now["classes"]}):
        was, is_ = then["classes"].get(cls, {}), now["classes"].get(cls, {})
        for name in sorted({*was, *is_}):
            if was.get(name) != is_.get(name):
                found.append(f"class {cls}, {name}: {was.get(name)} then, {is_.get(name)} now")
    for table in sorted({*then["contents"], *now["contents"]}):
        was, is_ = then["contents"].get(table, {}), now["contents"].get(table, {})
        for hour in sorted({*was, *is_}):
            if (before := was.get(hour, [0, ""])) != (after := is_.get(hour, [0, ""])):
                same = "the same number of rows, with other contents" if before[0] == after[0] else ""
                counts = same or f"{before[0]:,} rows then, {after[0]:,} now"
                found.append(f"{table}, hour {hour}: {counts}")
    return found


def file_differences(lake: Place, then: Mapping[str, Any]) -> tuple[int, list[str], list[str]]:
    """Return how many files of a proof are unchanged, and the lists of gone and changed files."""
    same = 0
    gone: list[str] = []
    other: list[str] = []
    for table in then["tables"]:
        for name, _, hashed in table["files"]:
            now = file_hash(lake / table["table"] / name)
            if now == hashed:
                same += 1
            else:
                (gone if now is None else other).append(f"{table['table']}/{name}")
    return same, gone, other
