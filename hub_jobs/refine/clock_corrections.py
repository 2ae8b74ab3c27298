"""Corrections of wrong clocks: the table `clocks`, a cache as `seen` is, and what they change in `readings`.

A correction may come later than the readings that it is about. The files with such rows are rewritten, and
replace the old ones in the commit of the pass in which the correction came, so that it is done once.
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
"""Corrections that are remembered of a domain; the oldest go. A machine without a clock of its own brings one
at each boot, and each pass reads all of them. One that is forgotten comes again in the stream of each class
that is further behind."""
_TURN: Final = "corrected"
"""The transaction of `readings` that tells a commit by some corrections from one by others."""
_WAIT_NS: Final = 3_600 * 10**9
"""For so long an input may have held what it had stamped, before the batch of it was sealed."""


class ClockCorrections:
    """Corrections by domain, each once, in the order in which they came."""

    def __init__(self) -> None:
        self._of_domain: dict[str, dict[Correction, None]] = {}
        self.saved = False
        """Whether the table holds these."""

    def add(self, correction: Correction) -> bool:
        """Add a correction; False when it is known."""
        known = self._of_domain.setdefault(correction.domain, {})
        if correction in known:
            return False
        known[correction] = None
        self.saved = False
        if len(known) > MOST:
            del known[next(iter(known))]
        return True

    def by_domain(self) -> dict[str, list[Correction]]:
        """All of them."""
        return {domain: list(corrections) for domain, corrections in self._of_domain.items()}


def load(
    lake: Place, bronze: Table, upto: Sequence[StreamHistory], note: cache.Note = cache.unsaid
) -> ClockCorrections:
    """The corrections in all that bronze holds of each history up to its `done`. Raises as `cache.load`."""
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
    """Save them for the next run; where the table holds them, only how far they go."""
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
    """The corrections in rows of histories above one sequence and up to another that are not known yet;
    adds them to `known`."""
    return [
        correction
        for history, after, to in increments
        for correction in corrections_of(bronze, replace(history, done=to), after)
        if known.add(correction)
    ]


def next_turn(readings: Table) -> dict[str, int]:
    """The transaction of a commit to `readings` that brings corrections, or rows of earlier ones decoded
    again: of two that were planned on one snapshot, neither knows what the other brings."""
    return {_TURN: (readings.offset(_TURN) or 0) + 1}


def corrections_of(bronze: Table, history: StreamHistory, after: int) -> Iterator[Correction]:
    """The corrections among the rows of a history above `after` and up to its `done`, without bad ones."""
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
    """The paths of the replaced files, below the table."""
    rows: int = 0
    """Rows that are corrected in them."""


def rewrite(
    spark: SparkSession, lake: Place, bronze: Table, readings: Table, corrections: Sequence[Correction]
) -> Rewritten:
    """Correct what `readings` holds; nothing of it counts before it is committed."""
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
    """When the batches of a domain were sealed that may hold a wrong time. A run is of one boot."""
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
