"""Looks up rows of single batches and messages by the bounds in the table logs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from agent.contract import H_ENCODING, ZSTD
from agent.contract.ranges import Range
from hub_jobs.audit.ledgers import Run
from hub_jobs.audit.rows import count_rows
from hub_jobs.audit.rows.hours import moments as moments_of
from hub_jobs.audit.rows.scan import AuditTables
from hub_jobs.refine.messages import UnpackError, count_lines, unpack
from hub_jobs.source.protocol import header
from hub_jobs.tables.parquet_reading import UnreadableError
from hub_jobs.tables.scan import Condition, batches
from hub_jobs.tables.spaces import BATCH, BATCH_KEY

_PAYLOADS: Final = 64
"""Payloads in memory at once."""

Key = tuple[Run, int]
"""A run and a batch number."""


def of_batches(wanted: Collection[Key]) -> list[Condition]:
    """Return conditions that exclude most other rows."""
    return [
        ("run", "in", sorted({run for (_, _, run), _ in wanted})),
        ("n", "in", sorted({n for _, n in wanted})),
    ]


def refinable(rows: pa.Table) -> list[dict[str, Any]]:
    """Convert rows of bronze for `Refiner`: arrival in microseconds since 1970."""
    at = rows.column_names.index("arrived")
    found: list[dict[str, Any]] = rows.set_column(at, "arrived", rows["arrived"].cast(pa.int64())).to_pylist()
    return found


def decoded(row: dict[str, Any]) -> pa.Table:
    """Decode the readings of a row."""
    from hub_jobs.refine.readings import Refiner

    refiner = Refiner()
    return pa.concat_tables([*refiner.add(row), refiner.drain()])


def places(tables: AuditTables, wanted: Sequence[Key]) -> dict[Key, list[int]]:
    """Return the taken places of batches, in readings or quarantine."""
    found: dict[Key, list[int]] = {key: [] for key in wanted}
    where = of_batches(wanted)
    for table, place in ((tables.readings, "index"), (tables.quarantine, "line")):
        if table is None:
            continue
        for rows in batches(table, [*BATCH_KEY, place], where):
            columns = [rows[name].to_pylist() for name in (*BATCH_KEY, place)]
            for domain, cls, run, n, at in zip(*columns, strict=True):
                if at is not None and (taken := found.get(((domain, cls, run), n))) is not None:
                    taken.append(at)
    return found


def lines(tables: AuditTables, wanted: Sequence[Key]) -> dict[Key, set[int]]:
    """Return the number of lines per batch payload; omits dropped or unreadable payloads."""
    found: dict[Key, set[int]] = {key: set() for key in wanted}
    columns = [*BATCH_KEY, "headers", "payload"]
    try:
        for rows in batches(tables.bronze, columns, of_batches(wanted), _PAYLOADS):
            for domain, cls, run, n, headers, payload in zip(*rows.to_pydict().values(), strict=True):
                if payload is not None and (known := found.get(((domain, cls, run), n))) is not None:
                    known |= _lines(headers, payload)
    except UnreadableError as error:
        tables.note("bronze", error)
    return found


def _lines(headers: bytes, payload: bytes) -> set[int]:
    compressed = header(headers, H_ENCODING.encode()) == ZSTD.encode()
    try:
        return {count_lines(unpack(payload, compressed=compressed))}
    except UnpackError:
        return set()


def moments(tables: AuditTables, wanted: Sequence[Run]) -> dict[Run, tuple[list[int], list[int]]]:
    """Return sorted batch numbers of runs and their sealing times in microseconds since 1970."""
    where: list[Condition] = [("run", "in", sorted({run[2] for run in wanted}))]
    parts = []
    for rows in batches(tables.bronze, [*BATCH_KEY, "arrived", "headers"], where):
        moment, _ = moments_of(rows)
        parts.append(rows.select(BATCH_KEY).append_column("moment", pa.array(moment)))
    if not parts:
        return {}
    found = pa.concat_tables(parts).group_by(BATCH_KEY).aggregate([("moment", "min")]).sort_by("n")
    return {
        key: (mine["n"].to_pylist(), mine["moment_min"].to_pylist())
        for key in wanted
        if (mine := found.filter(_of_run(*key))).num_rows
    }


def kept_readings(tables: AuditTables, key: Run, came: Sequence[Range]) -> int:
    """Count the readings of arrived batches. Dead letters are numbered but are no readings."""
    where: list[Condition] = [(name, "=", value) for name, value in zip(BATCH, key, strict=True)]
    where += [("n", ">=", came[0][0]), ("n", "<=", came[-1][1])]
    held: dict[int, int] = {}
    for rows in batches(tables.bronze, ["n", "count", "subject"], where):
        kinds = pc.split_pattern(rows["subject"], ".")
        for n, size, kind in zip(
            rows["n"].to_pylist(), rows["count"].to_pylist(), kinds.to_pylist(), strict=True
        ):
            if kind[3] == "_batch" and any(first <= n <= last for first, last in came):
                held[n] = max(held.get(n, 0), size or 0)
    return sum(held.values())


def kept_messages(tables: AuditTables, stream: str, identity: str, came: Sequence[Range]) -> int:
    """Count the arrived direct messages of a source."""
    where: list[Condition] = [("source_stream", "=", stream), ("source_identity", "=", identity)]
    where += [("source_seq", ">=", came[0][0]), ("source_seq", "<=", came[-1][1])]
    held: set[int] = set()
    for rows in batches(tables.bronze, ["n", "subject", "source_seq"], where):
        direct = count_rows.is_direct(rows)
        held.update(rows["source_seq"].filter(pa.array(direct)).to_pylist())
    return sum(any(first <= seq <= last for first, last in came) for seq in held)


def _of_run(domain: str, cls: str, run: str) -> pc.Expression:
    return (pc.field("domain") == domain) & (pc.field("class") == cls) & (pc.field("run") == run)
