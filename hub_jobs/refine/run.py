"""Runs the job `refine`, which turns new rows of `bronze` into rows of `readings` and `quarantine`.

A pass commits `quarantine` first, with the planned offsets; the offsets of `readings` are the truth. A run
that finds the first ahead finishes that pass, so nothing is quarantined twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.contract import Exit
from hub_jobs.job_loop import Stop, job_parser, metrics_of, never, run_job, say
from hub_jobs.metrics import JobMetrics
from hub_jobs.refine import clock_corrections, plan, task
from hub_jobs.refine.clock_corrections import ClockCorrections
from hub_jobs.source.cluster import tasks_at_once
from hub_jobs.spark.session import run_tasks
from hub_jobs.tables import seen, stream_history
from hub_jobs.tables.delta import ConflictError, ensure_table, no_table
from hub_jobs.tables.places import Place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from hub_jobs.tables.seen import SeenTable

_NAME: Final = "refine"


class Known(NamedTuple):
    """State of earlier runs, extended by each pass."""

    seen: SeenTable
    clocks: ClockCorrections


def main(argv: Sequence[str] | None = None) -> Exit:
    """Run the job and return its exit code."""
    parser = job_parser(_NAME, "Turn `bronze` into `readings`.", repeats=True)
    given = parser.parse_args(argv)
    metrics = metrics_of(_NAME, parser, given)
    return run_job(partial(run, given.lake, metrics=metrics), given.every, metrics)


def run(lake: Place, stop: Stop = never, metrics: JobMetrics | None = None) -> Exit:
    """Refine all of bronze, pass by pass until stopped. Raises `TableError`."""
    metrics = metrics or JobMetrics(_NAME)
    metrics.add_refined(0, 0, 0)
    spark: SparkSession | None = None
    known: Known | None = None
    done: plan.Pass | None = None
    bronze = stream_history.open_bronze(lake)
    if bronze is None:
        raise no_table(lake, "bronze", "ingest")
    tables = plan.RefineTables(bronze, ensure_table(lake, "readings"), ensure_table(lake, "quarantine"))
    while not stop():
        planned = plan.plan(tables)
        metrics.set_unrefined(0 if planned is None else planned.sequences)
        if planned is None:
            break
        if done is not None and not _is_ours(planned, done):
            # Another run refined between two passes of this one: what it took this run has not seen.
            known = done = None
        if known is None:
            before, note = planned.before, partial(say, _NAME)
            known = Known(
                seen.load(lake, tables.bronze, before, note),
                clock_corrections.load(lake, tables.bronze, before, note),
            )
        if spark is None:
            from hub_jobs.spark.session import session

            spark = session(_NAME)
        planned = plan.bounded(planned, tasks_at_once(spark))
        metrics.add_refined(*_refine(spark, lake, tables, planned, known))
        done = planned
        tables = tables.newest()
    if done is not None and known is not None:
        known.seen.save(lake, done.after)
        clock_corrections.save(lake, known.clocks, done.after)
    metrics.measure(lake, ("bronze", "readings", "quarantine"))
    return Exit.WELL


def _is_ours(planned: plan.Pass, done: plan.Pass) -> bool:
    """Tell whether no other run refined between two passes."""
    ends = {history.history: history.done or 0 for history in done.after}
    return all(ends.get(history.history, 0) == (history.done or 0) for history in planned.before)


def _refine(
    spark: SparkSession, lake: Place, tables: plan.RefineTables, planned: plan.Pass, known: Known
) -> tuple[int, int, int]:
    """Run one pass: correct, decide, decode, commit, and extend `known`.

    Returns the numbers of readings, quarantine rows and repeats.
    """
    increments = [(increment.history, increment.after, increment.to) for increment in planned.increments]
    news = clock_corrections.new_corrections(tables.bronze, increments, known.clocks)
    corrected = clock_corrections.rewrite(spark, lake, tables.bronze, tables.readings, news)
    decision = plan.decide(tables.bronze, planned, known.seen)
    in_quarantine = plan.quarantined(tables.quarantine, planned)
    cores = tasks_at_once(spark)
    parts = plan.parts(lake, planned, decision, in_quarantine, known.clocks.by_domain(), cores)
    done = run_tasks(spark, task.refine, parts) if parts else []
    readings = [file for result in done for file in result.readings]
    quarantine = [file for result in done for file in result.quarantine]
    try:
        if not planned.resumed:
            tables.quarantine.commit(quarantine, planned.named)
        elif quarantine:
            # Its offsets may stay as they are, so that only the turn of rewrites tells two such runs apart.
            tables.quarantine.rewrite(quarantine, [], planned.named, changed=True)
    except ConflictError:
        tables.readings.discard(readings + corrected.files)
        raise
    offsets = planned.offsets | (clock_corrections.next_turn(tables.readings) if news else {})
    if corrected.replaced:
        tables.readings.rewrite(readings + corrected.files, corrected.replaced, offsets, changed=True)
    else:
        tables.readings.commit(readings, offsets)
    rows = sum(file.rows for file in readings), sum(file.rows for file in quarantine)
    repeats = sum(map(len, decision.repeated.values()))
    say(_NAME, f"{rows[0]} readings, {rows[1]} rows to quarantine, {repeats} repeated messages dropped")
    if corrected.rows:
        say(_NAME, f"{corrected.rows} readings had been stamped by a wrong clock and are corrected")
    if decision.unverified:
        say(_NAME, f"{decision.unverified} repeats by number alone: bronze no longer has their first copy")
    return *rows, repeats
