"""Compares readings and quarantine with the payloads of bronze, and payloads with their digests.

Sums find differing batches (`file_sums`); the first of these are compared reading by reading.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from agent.contract.ranges import text
from hub_jobs.audit import file_sums
from hub_jobs.audit.file_sums import Contents
from hub_jobs.audit.rows import lookups, scan
from hub_jobs.audit.rows.count_rows import Share
from hub_jobs.audit.rows.lookups import Key, decoded, refinable
from hub_jobs.audit.rows.mismatches import run_of
from hub_jobs.audit.rows.pieces import ArrivedSpan
from hub_jobs.audit.rows.scan import AuditTables
from hub_jobs.tables.grouping import Names, changes, coded, grouped
from hub_jobs.tables.parquet_reading import UnreadableError
from hub_jobs.tables.ranges import Mask, Numbers, runs_of
from hub_jobs.tables.scan import Condition, batches
from hub_jobs.tables.schemas import BRONZE
from hub_jobs.tables.spaces import BATCH, BATCH_KEY, HISTORY, SOURCE_KEY
from hub_jobs.times import at_micros

LOOKED_AT: Final = 50
"""Batches compared reading by reading."""

_NAMED: Final = 3

_COLUMNS: Final = ("ts", "device", "metric", "value", "text", "tags", "value_array", "value_bytes")

_AT_ONCE: Final = 16

Reading = dict[str, Any]

_LISTED: Final = 1_000


@dataclass(slots=True)
class Differences:
    """Differences between tables and payloads."""

    sentences: list[str] = field(default_factory=list)
    dropped: int = 0
    """Messages not compared because their payload was dropped."""
    batches: list[Key] = field(default_factory=list)
    """Some differing batches, for a comparison by reading."""

    @property
    def notes(self) -> list[str]:
        """Sentences about harmless facts."""
        if not self.dropped:
            return []
        return [f"the contents of {self.dropped} messages were not compared: their payloads were dropped"]


def compare_contents(tables: AuditTables) -> Differences:
    """Compare all payloads with their digests, and their decoded readings with readings and quarantine."""
    found = Differences()
    for share in tables.shares:
        _compare_share(tables, share, secrets.token_bytes(16), found)
    found.sentences += of_batches(tables, found.batches)
    return found


def _compare_share(tables: AuditTables, share: Share, secret: bytes, found: Differences) -> None:
    # What is older may have been deleted from one table and not from another.
    kept = ArrivedSpan(first=tables.kept_since or None)
    work = [replace(piece, span=kept) for table in tables.existing for piece in tables.pieces(table, share)]
    schemas = {"bronze": file_sums.MESSAGES, "readings": file_sums.READ, "quarantine": file_sums.NAMED}
    parts = {name: [schema.empty_table()] for name, schema in schemas.items()}
    changed: list[tuple[str, str, int]] = []
    sums: Contents
    for piece, sums in scan.each(tables, partial(file_sums.of_file, secret=secret), work):
        parts[piece.table].append(sums.rows)
        changed += sums.changed
    found.sentences += _of_digests(changed)
    held, read, named = (pa.concat_tables(parts[name]).unify_dictionaries() for name in schemas)
    _compare(tables, found, held, read, named)


def _of_digests(changed: list[tuple[str, str, int]]) -> list[str]:
    by_history: dict[tuple[str, str], list[int]] = {}
    for stream, created, seq in changed:
        by_history.setdefault((stream, created), []).append(seq)
    return [
        f"bronze: the payloads of sequences {text(runs_of(np.array(seqs)))} of {'/'.join(history)} are not "
        "those of their digests"
        for history, seqs in sorted(by_history.items())
    ]


def _compare(
    tables: AuditTables, found: Differences, held: pa.Table, read: pa.Table, named: pa.Table
) -> None:
    """Compare the sums of each batch and source place. Refine decodes one of several equal copies.

    With unreadable files, only the counts judge missing rows.
    """
    quarantined, other = _by_message(held, named)
    held = held.append_column("quarantined", pa.array(quarantined)).filter(pa.array(~other))
    batch = held["n"].to_numpy() >= 0
    of_batches = read.filter(read["n"].is_valid())
    of_places = read.filter(read["n"].is_null())
    for own, rows, key in ((batch, of_batches, BATCH_KEY), (~batch, of_places, SOURCE_KEY)):
        *names, number = key
        mine = held.filter(pa.array(own))
        (of_held, of_read), owners = coded([mine, rows], names)
        numbers = [table[number].fill_null(-1).to_numpy() for table in (mine, rows)]
        (ids, read_ids), size, firsts = grouped([of_held, of_read], numbers)
        actual = np.zeros(size, np.int64)
        np.add.at(actual, read_ids, rows["sum"].to_numpy())
        owner, at = np.concatenate([of_held, of_read])[firsts], np.concatenate(numbers)[firsts]
        wrong = _differing(found, mine, ids, actual, partly=bool(tables.unreadable))
        if wrong.size and tables.kept_since:
            aged = _aged(tables, key, at[wrong])
            kept = [(*owners[owner[each]], int(at[each])) not in aged for each in wrong.tolist()]
            wrong = wrong[np.array(kept)]
        _name(found, wrong, owner, at, owners)


def _aged(tables: AuditTables, columns: Sequence[str], numbers: Numbers) -> set[tuple[Any, ...]]:
    """Return which batches or places arrived before `kept_since`, so that their readings may be expired."""
    number = columns[-1]
    where: list[Condition] = [
        ("arrived", "<", at_micros(tables.kept_since)),
        (number, ">=", int(numbers.min())),
        (number, "<=", int(numbers.max())),
    ]
    wanted = pa.array(np.unique(numbers))
    found: set[tuple[Any, ...]] = set()
    for rows in batches(tables.bronze, columns, where):
        mine = rows.filter(pc.is_in(rows[number], value_set=wanted))
        found.update(zip(*mine.to_pydict().values(), strict=True))
    return found


def _by_message(held: pa.Table, named: pa.Table) -> tuple[Numbers, Mask]:
    codes, _ = coded([held, named], HISTORY)
    ids, size, _ = grouped(codes, [held["seq"].to_numpy(), named["seq"].to_numpy()])
    sums, other = np.zeros(size, np.int64), np.zeros(size, np.bool_)
    np.add.at(sums, ids[1], named["sum"].to_numpy())
    np.logical_or.at(other, ids[1], named["other"].to_numpy())
    return sums[ids[0]], other[ids[0]]


def _differing(found: Differences, held: pa.Table, ids: Numbers, actual: Numbers, *, partly: bool) -> Numbers:
    content, seq = held["content"].to_numpy(), held["seq"].to_numpy()
    known, refined = held["known"].to_numpy(), held["refined"].to_numpy()
    order = np.lexsort((seq, ~known, content, ids))
    if not order.size:
        return np.array([], np.int64)
    first = order[changes(ids[order], content[order])]
    size = actual.size
    sums = {name: np.zeros(size, np.int64) for name in ("read", "named", "quarantined")}
    for name in ("read", "named"):
        np.add.at(sums[name], ids[first], held[name].to_numpy()[first])
    np.add.at(sums["quarantined"], ids, held["quarantined"].to_numpy())
    comparable = np.zeros(size, np.bool_)
    comparable[ids] = True
    np.logical_and.at(comparable, ids[first], known[first])
    done = np.zeros(size, np.bool_)
    np.logical_or.at(done, ids, refined)
    found.dropped += int(np.count_nonzero(~known[first]))
    wrong = comparable & done & ((sums["read"] != actual) | (sums["named"] != sums["quarantined"]))
    # Copies of one content may differ in their headers, which give a reading without a time its own.
    for at in np.flatnonzero(wrong).tolist():
        rows = np.flatnonzero(ids == at)
        if np.unique(content[rows]).size == 1 and any(
            held["read"][row].as_py() == actual[at] and held["named"][row].as_py() == sums["quarantined"][at]
            for row in rows.tolist()
        ):
            wrong[at] = False
    if partly:
        wrong &= actual != 0
    return np.flatnonzero(wrong)


def _name(found: Differences, wrong: Numbers, owner: Numbers, numbers: Numbers, owners: list[Names]) -> None:
    for code in np.unique(owner[wrong]).tolist():
        names = owners[code]
        ranges = text(runs_of(numbers[wrong][owner[wrong] == code]))
        if len(names) == len(BATCH):
            domain, cls, run = run_of(names)
            mine = numbers[wrong][owner[wrong] == code][:LOOKED_AT].tolist()
            found.batches += [((domain, cls, run), n) for n in mine]
            where = f"{domain}, class {cls}, run {run}: batches {ranges}"
        else:
            stream, identity = names
            where = f"messages {ranges} of {stream} ({identity})"
        if len(found.sentences) < _LISTED:
            found.sentences.append(
                f"{where}: what is in readings and quarantine is not what their payloads hold"
            )


def of_batches(tables: AuditTables, keys: Sequence[Key]) -> Iterator[str]:
    """Sentences about the first readings that differ, a few of each batch."""
    wanted = set(keys[:LOOKED_AT])
    if not wanted or tables.readings is None:
        return
    where = lookups.of_batches(wanted)
    due: dict[Key, dict[int, Reading]] = {}
    there: dict[Key, dict[int, Reading]] = {}
    try:
        for rows in batches(tables.bronze, BRONZE.names, where, _AT_ONCE):
            for row in refinable(rows):
                if _key(row) in wanted and row["payload"] is not None:
                    held = {reading["index"]: _reading(reading) for reading in decoded(row).to_pylist()}
                    due.setdefault(_key(row), held)
        for rows in batches(tables.readings, [*BATCH_KEY, "index", "ts_original", *_COLUMNS], where):
            for row in rows.to_pylist():
                if _key(row) in wanted:
                    there.setdefault(_key(row), {})[row["index"]] = _reading(row)
    except UnreadableError:
        return  # reported elsewhere as unreadable
    for key in sorted(wanted & due.keys()):
        yield from _differences(key, due[key], there.get(key, {}))


def _differences(key: Key, due: dict[int, Reading], there: dict[int, Reading]) -> Iterator[str]:
    (domain, cls, run), n = key
    found = [
        f"{domain}, class {cls}, run {run}, batch {n}, index {at}: {name} is {_shown(there[at][name])}, "
        f"and {_shown(reading[name])} in its payload"
        for at, reading in sorted(due.items())
        if at in there
        for name in _COLUMNS
        if there[at][name] != reading[name]
    ]
    yield from found[:_NAMED]
    if len(found) > _NAMED:
        yield f"{domain}, class {cls}, run {run}, batch {n}: and {len(found) - _NAMED} more differences"


def _shown(value: Any) -> Any:
    if isinstance(value, list):
        return f"{len(value)} numbers that begin with {value[:4]}"
    if isinstance(value, bytes):
        return f"{len(value)} bytes that begin with {value[:4]!r}"
    return value


def _reading(row: dict[str, Any]) -> Reading:
    ts = row["ts"] if row["ts_original"] is None else row["ts_original"]
    return {name: row[name] for name in _COLUMNS} | {"ts": ts, "tags": dict(row["tags"] or ())}


def _key(row: dict[str, Any]) -> Key:
    return (row["domain"], row["class"], row["run"]), row["n"]
