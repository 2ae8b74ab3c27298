"""Corrections that come later than what they are about: rows that are in `readings` already get the right
time. The files with such rows are written anew and take the place of the old ones in the commit of the pass
in which the correction came, so that it is done once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from agent.contract import H_CLOCK, H_SEALED_AT, ContractError, Correction, parse_clock
from hub_jobs.refine import task
from hub_jobs.refine.clocks import Batch, SealTime
from hub_jobs.session import run_tasks
from hub_jobs.source.wire import header
from hub_jobs.tables import Condition, Table
from hub_jobs.tables.parquet import PartFile
from hub_jobs.tables.places import Place
from hub_jobs.tables.scan import batches, file_paths

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WAIT_NS: Final = 3_600 * 10**9
"""For so long an input may have held what it had stamped, before the batch of it was sealed."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """Files of `readings` that take the place of others, and how many rows are corrected in them; those are
    named by their paths below the table."""

    files: list[PartFile] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    rows: int = 0


def rewrite(
    spark: SparkSession, lake: Place, bronze: Table, readings: Table, given: Sequence[Correction]
) -> Rewritten:
    """Correct what `readings` holds; nothing of it counts before it is committed."""
    domains = sorted({one.domain for one in given})
    sealed = {batch: one for domain in domains for batch, one in _sealed(bronze, domain, given)}
    if not sealed:
        return Rewritten()
    where: list[Condition] = [
        ("domain", "in", domains),
        ("run", "in", sorted({run for _, _, run, _ in sealed})),
    ]
    parts = [task.CorrectPart(lake, path, tuple(given), sealed) for path in file_paths(readings, where)]
    done = run_tasks(spark, task.correct, parts) if parts else []
    changed = [(part.path, one) for part, one in zip(parts, done, strict=True) if one.rows]
    return Rewritten(
        [file for _, one in changed for file in one.files],
        [path.name for path, _ in changed],
        sum(one.rows for _, one in changed),
    )


def _sealed(bronze: Table, domain: str, given: Sequence[Correction]) -> Iterator[tuple[Batch, SealTime]]:
    """When the batches of a domain were sealed that may hold a wrong time. A run is of one boot."""
    mine = [one for one in given if one.domain == domain]
    until = {one.boot: max(each.until for each in mine if each.boot == one.boot) for one in mine}
    boots: dict[str, str] = {}
    for piece in batches(bronze, ["class", "run", "n", "headers"], [("domain", "=", domain)]):
        columns = [piece[name].to_pylist() for name in ("class", "run", "n", "headers")]
        for cls, run, n, headers in zip(*columns, strict=True):
            if n is None or (run in boots and boots[run] not in until):
                continue
            sealed = _header(headers)
            if sealed is None:
                continue
            boots[run] = sealed.boot
            if sealed.boot in until and sealed.monotonic < until[sealed.boot] + _WAIT_NS:
                yield (domain, cls, run, n), sealed


def _header(headers: bytes) -> SealTime | None:
    clock, wall = header(headers, H_CLOCK.encode()), header(headers, H_SEALED_AT.encode())
    if clock is None or wall is None or not wall.isdigit():
        return None
    try:
        found = parse_clock(clock.decode(errors="replace"))
    except ContractError:
        return None
    return SealTime(int(wall) // 1000, found.boot, found.monotonic)
