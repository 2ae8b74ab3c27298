"""Keeps clock corrections in the table `clocks`, a cache like `seen`, and applies them to `readings`.

Late corrections rewrite the affected files in the commit of the pass that received them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from agent.contract import H_CLOCK, H_SEALED_AT, ContractError, Correction, parse_clock
from hub_jobs.refine import task
from hub_jobs.refine.clocks import Batch, SealTime
from hub_jobs.refine.messages import QuarantinedError, correction_in
from hub_jobs.source.protocol import header
from hub_jobs.spark.session import run_tasks
from hub_jobs.tables import cache
from hub_jobs.tables.delta import Table, open_table
from hub_jobs.tables.parquet import PartFile
from hub_jobs.tables.places import Place
from hub_jobs.tables.scan import Condition, batches, file_paths, rows
from hub_jobs.tables.schemas import CLOCKS
from hub_jobs.tables.stream_history import StreamHistory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST: Final = 100
"""Corrections kept per domain, newest first; every pass reads them all. A forgotten one arrives again with
each class that is further behind.
"""
_TURN: Final = "corrected"
"""The transaction of `readings` that makes parallel commits with corrections conflict."""
_WAIT_NS: Final = 3_600 * 10**9
"""Longest time that an input holds stamped data before its batch is sealed."""


class ClockCorrections:
    """Distinct corrections by domain, in order of arrival."""

    def __init__(self) -> None:
        self._of_domain: dict[str, dict[Correction, None]] = {}
        self.saved = False
        """Whether the table holds these."""

    def add(self, correction: Correction) -> bool:
        """Add a correction; False when known."""
        known = self._of_domain.setdefault(correction.domain, {})
        if correction in known:
            return False
        known[correction] = None
        self.saved = False
        if len(known) > MOST:
            del known[next(iter(known))]
        return True

    def by_domain(self) -> dict[str, list[Correction]]:
        return {domain: list(corrections) for domain, corrections in self._of_domain.items()}


def load(
    lake: Place, bronze: Table, upto: Sequence[StreamHistory], note: cache.Note = cache.unsaid
) -> ClockCorrections:
    """Return the corrections in bronze up to `done` of each history. Raises as `cache.load`."""
    corrections = ClockCorrections()
    table, cached = cache.load(lake, "clocks", upto, note)
    for row in cached.to_pylist():
        corrections.add(Correction(**row))
    held = sum(map(len, corrections.by_domain().values()))
    corrections.saved = table is not None and held == cached.num_rows
    for history, after in cache.behind(table, upto):
        for correction in corrections_of(bronze, history, after):
            corrections.add(correction)
    return corrections


def save(lake: Place, corrections: ClockCorrections, upto: Sequence[StreamHistory]) -> None:
    """Store them, or only their offsets when the table already holds them."""
    table = open_table(lake, "clocks") if corrections.saved else None
    if table is not None:
        return cache.save(lake, "clocks", CLOCKS.empty_table(), upto, beside=table)
    flat = [
        {name: getattr(correction, name) for name in CLOCKS.names}
        for of_domain in corrections.by_domain().values()
        for correction in of_domain
    ]
    cache.save(lake, "clocks", pa.Table.from_pylist(flat, CLOCKS), upto)
    corrections.saved = True
    return None


def new_corrections(
    bronze: Table, increments: Sequence[tuple[StreamHistory, int, int]], known: ClockCorrections
) -> list[Correction]:
    """Return unknown corrections in the increments, after adding them to `known`."""
    return [
        correction
        for history, after, to in increments
        for correction in corrections_of(bronze, replace(history, done=to), after)
        if known.add(correction)
    ]


def next_turn(readings: Table) -> dict[str, int]:
    """Return the transaction that makes commits conflict if they apply corrections or decode
    corrected rows.
    """
    return {_TURN: (readings.offset(_TURN) or 0) + 1}


def corrections_of(bronze: Table, history: StreamHistory, after: int) -> Iterator[Correction]:
    """Yield valid corrections in a history's rows above `after` up to `done`."""
    where = history.rows(after, history.done or 0)
    seqs: list[int] = []
    for batch in batches(bronze, ["seq", "subject", "class"], where, coded=True):
        subjects = batch["subject"].combine_chunks()
        are_of_clock = pc.ends_with(subjects.dictionary, "._clock")
        if pc.any(are_of_clock).as_py():
            of_clock = pc.and_(are_of_clock.take(subjects.indices), pc.is_valid(batch["class"]))
            seqs += batch.filter(of_clock)["seq"].to_pylist()
    if not seqs:
        return
    records = rows(bronze, ["seq", "domain", "payload"], [*where, ("seq", "in", seqs)])
    for row in records.sort_by("seq").to_pylist():
        try:
            yield correction_in(row["payload"], row["domain"])
        except QuarantinedError:
            continue


@dataclass(frozen=True, slots=True)
class Rewritten:
    """Files of `readings` that replace others."""

    files: list[PartFile] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    """Paths of the replaced files."""
    rows: int = 0
    """Number of corrected rows."""


def rewrite(
    spark: SparkSession, lake: Place, bronze: Table, readings: Table, corrections: Sequence[Correction]
) -> Rewritten:
    """Write corrected copies of affected files, without committing."""
    domains = sorted({correction.domain for correction in corrections})
    sealed = {batch: at for domain in domains for batch, at in _sealed(bronze, domain, corrections)}
    if not sealed:
        return Rewritten()
    where: list[Condition] = [
        ("domain", "in", domains),
        ("run", "in", sorted({run for _, _, run, _ in sealed})),
    ]
    parts = [task.CorrectPart(lake, path, tuple(corrections), sealed) for path in file_paths(readings, where)]
    done = run_tasks(spark, task.correct, parts) if parts else []
    changed = [(part.path, result) for part, result in zip(parts, done, strict=True) if result.rows]
    return Rewritten(
        [file for _, result in changed for file in result.files],
        [path.name for path, _ in changed],
        sum(result.rows for _, result in changed),
    )


def _sealed(
    bronze: Table, domain: str, corrections: Sequence[Correction]
) -> Iterator[tuple[Batch, SealTime]]:
    """Yield seal times of a domain's batches that may have a wrong time. A run has one boot."""
    until: dict[str, int] = {}
    for correction in corrections:
        if correction.domain == domain:
            until[correction.boot] = max(correction.until, until.get(correction.boot, correction.until))
    boots: dict[str, str] = {}
    for piece in batches(bronze, ["class", "run", "n", "headers"], [("domain", "=", domain)]):
        columns = [piece[name].to_pylist() for name in ("class", "run", "n", "headers")]
        for cls, run, n, headers in zip(*columns, strict=True):
            if n is None or (run in boots and boots[run] not in until):
                continue
            sealed = _seal_time(headers)
            if sealed is None:
                continue
            boots[run] = sealed.boot
            if sealed.boot in until and sealed.monotonic < until[sealed.boot] + _WAIT_NS:
                yield (domain, cls, run, n), sealed


def _seal_time(headers: bytes) -> SealTime | None:
    clock, wall = header(headers, H_CLOCK.encode()), header(headers, H_SEALED_AT.encode())
    if clock is None or wall is None or not wall.isdigit():
        return None
    try:
        parsed = parse_clock(clock.decode(errors="replace"))
    except ContractError:
        return None
    return SealTime(int(wall) // 1000, parsed.boot, parsed.monotonic)
