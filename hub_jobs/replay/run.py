"""Runs the job `replay`, which decodes a range of `bronze` again after wrong decoding or a table's loss.

It commits `readings` first and `quarantine` last: after a kill in between, lines are in both tables rather
than in neither. The audit reports that, and another run repairs it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from agent.contract import Exit
from hub_jobs.job_loop import job_parser, metrics_of, run_once, say
from hub_jobs.metrics import JobMetrics
from hub_jobs.refine import clock_corrections, task
from hub_jobs.refine.clocks import Corrections
from hub_jobs.refine.messages import QuarantineReason
from hub_jobs.refine.plan import RefineTables
from hub_jobs.replay.selection import ReplaySelection, keys, select
from hub_jobs.spark.session import run_tasks
from hub_jobs.tables import stream_history
from hub_jobs.tables.compaction import without
from hub_jobs.tables.delta import ConflictError, Table, ensure_table, no_table, open_table
from hub_jobs.tables.grouping import different_rows
from hub_jobs.tables.places import Place
from hub_jobs.tables.scan import Condition, batches, rows
from hub_jobs.tables.spaces import BATCH_KEY, HUB_KEY, SOURCE_KEY, upto
from hub_jobs.tables.stream_history import StreamHistory, file_histories
from hub_jobs.times import moment

_NAME: Final = "replay"
_COLUMNS: Final = (*HUB_KEY, *BATCH_KEY, *SOURCE_KEY, "digest", "arrived")


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """The command line's options; ranges include both ends, None is open."""

    lake: Place
    stream: str
    created: str | None
    first: int | None
    last: int | None
    since: datetime | None
    until: datetime | None
    dry_run: bool


class Decodable(NamedTuple):
    """Refined rows of bronze from `kept_since` (microseconds since 1970), as earlier readings may have
    expired.
    """

    bronze: Table
    histories: Sequence[StreamHistory]
    kept_since: int = 0


def main(argv: Sequence[str] | None = None) -> Exit:
    """Run the job and return its exit code."""
    options, metrics = _options(argv)
    return run_once(partial(run, options), metrics)


def run(options: ReplayOptions) -> Exit:
    """Replay a range. Raises `ConflictError` when another job rewrote a table meanwhile."""
    bronze = open_table(options.lake, "bronze")
    if bronze is None:
        say(_NAME, str(no_table(options.lake, "bronze", "ingest")))
        return Exit.USAGE
    histories = stream_history.all_of(bronze)
    named = [options.stream, *([options.created] if options.created else [])]
    present = {history.history[: len(named)] for history in histories}
    if tuple(named) not in present:
        names = ", ".join(" of ".join(one) for one in sorted(present)) or "nothing"
        say(_NAME, f"{bronze.path} has no rows of stream {' of '.join(named)}; it has rows of {names}")
        return Exit.USAGE
    readings, quarantine = ensure_table(options.lake, "readings"), ensure_table(options.lake, "quarantine")
    refined = stream_history.refined(histories, readings)
    kept_since = max(readings.kept_since or 0, quarantine.kept_since or 0)
    known = Decodable(bronze, refined, kept_since)
    wanted = _wanted(options, known)
    selection = select(wanted, _with_keys_of(known, wanted), _other_content(quarantine))
    if selection.thinned:
        said = "their payloads were dropped" + (", or they were deleted for their age" if kept_since else "")
        say(_NAME, f"{selection.thinned} messages stay as they are: {said}")
    count = sum(map(len, selection.decoded.values()))
    say(_NAME, f"{count} of {wanted.num_rows} messages of {options.stream} are decoded again")
    if not count or options.dry_run:
        return Exit.WELL
    corrections = clock_corrections.load(options.lake, bronze, refined).by_domain()
    _replay(options.lake, RefineTables(bronze, readings, quarantine), selection, corrections)
    return Exit.WELL


def _options(argv: Sequence[str] | None) -> tuple[ReplayOptions, JobMetrics]:
    parser = job_parser(_NAME, "Decode a range of `bronze` again.")
    parser.add_argument("--stream", required=True, help="the hub's stream, such as TELEMETRY_0")
    parser.add_argument("--created", help="one history of it only, as the column says")
    parser.add_argument("--from-seq", type=int, metavar="N", help="the first hub sequence")
    parser.add_argument("--to-seq", type=int, metavar="N", help="the last hub sequence")
    parser.add_argument("--since", type=moment, metavar="TIME", help="arrived at or after, RFC 3339")
    parser.add_argument("--until", type=moment, metavar="TIME", help="arrived at or before, RFC 3339")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    given = parser.parse_args(argv)
    bounds = (given.from_seq, given.to_seq, given.since, given.until)
    if all(bound is None for bound in bounds):
        parser.error("give a range: --from-seq, --to-seq, --since or --until")
    options = ReplayOptions(given.lake, given.stream, given.created, *bounds, given.dry_run)
    return options, metrics_of(_NAME, parser, given)


def _replay(lake: Place, tables: RefineTables, selection: ReplaySelection, corrections: Corrections) -> None:
    from hub_jobs.spark.session import session

    bronze, readings, quarantine = tables
    parts = list(_parts(lake, bronze, selection, corrections))
    done = run_tasks(session(_NAME), task.refine, parts)
    new_readings = [file for result in done for file in result.readings]
    new_named = [file for result in done for file in result.quarantine]
    named = without(lake, quarantine, lambda rows: _messages_of(rows, selection), [*HUB_KEY, "reason"])
    old = without(lake, readings, lambda rows: _came_of(rows, selection), [*BATCH_KEY, *SOURCE_KEY])
    turn = clock_corrections.next_turn(readings)
    try:
        readings.rewrite([*new_readings, *old.kept], old.replaced, turn, changed=True)
    except ConflictError:
        quarantine.discard([*new_named, *named.kept])
        raise
    quarantine.rewrite([*new_named, *named.kept], named.replaced, changed=True)
    say(
        _NAME,
        f"{sum(file.rows for file in new_readings)} readings in the place of {old.rows}, "
        f"{sum(file.rows for file in new_named)} rows of quarantine in the place of {named.rows}",
    )


def _parts(
    lake: Place, bronze: Table, selection: ReplaySelection, corrections: Corrections
) -> Iterator[task.RefinePart]:
    """Yield a task per file, each with its own sequences only."""
    decoded = {history: sorted(seqs) for history, seqs in selection.decoded.items()}
    for file in file_histories(bronze):
        every = decoded.get(file.history, [])
        seqs = every[bisect_left(every, file.first) : bisect_right(every, file.last)]
        if seqs:
            yield task.RefinePart(
                lake,
                [bronze.path / file.path],
                file.history,
                seqs[0] - 1,
                seqs[-1],
                only=frozenset(seqs),
                corrections=corrections,
            )


def _messages_of(held: pa.Table, selection: ReplaySelection) -> pa.Array:
    """Return the quarantine rows to replace; batches quarantined for other content stay."""
    compared = pc.is_in(held["reason"], value_set=pa.array([str(QuarantineReason.OTHER_CONTENT)]))
    return pc.and_not(_is_in(keys(held, HUB_KEY), selection.messages), compared)


def _came_of(held: pa.Table, selection: ReplaySelection) -> pa.Array:
    batch = _is_in(keys(held, BATCH_KEY), selection.batches)
    place = pc.and_(pc.is_null(held["n"]), _is_in(keys(held, SOURCE_KEY), selection.places))
    return pc.or_(batch, place)


def _is_in(found: pa.Array, wanted: set[str]) -> pa.Array:
    return pc.is_in(found, value_set=pa.array(sorted(wanted), pa.string()))


def _wanted(options: ReplayOptions, known: Decodable) -> pa.Table:
    where: list[Condition] = [("stream", "=", options.stream)]
    for column, sign, value in (
        ("created", "=", options.created),
        ("seq", ">=", options.first),
        ("seq", "<=", options.last),
        ("arrived", ">=", options.since),
        ("arrived", "<=", options.until),
    ):
        if value is not None:
            where.append((column, sign, value))
    return _identities(known, where)


def _with_keys_of(known: Decodable, wanted: pa.Table) -> pa.Table:
    pieces = [wanted]
    for column, number in (("run", "n"), ("source_stream", "source_seq")):
        keyed = wanted.filter(pc.is_valid(wanted["run"]) if column == "run" else pc.is_null(wanted["n"]))
        if not keyed.num_rows:
            continue
        ends = pc.min_max(keyed[number])
        where: list[Condition] = [(column, "in", pc.unique(keyed[column]).drop_null().to_pylist())]
        if ends["min"].is_valid:
            where += [(number, ">=", ends["min"].as_py()), (number, "<=", ends["max"].as_py())]
        pieces.append(_identities(known, where))
    every = pa.concat_tables(pieces)
    first, _ = different_rows(every.select(HUB_KEY).columns)
    return every.take(pa.array(np.sort(first)))


def _identities(known: Decodable, where: Sequence[Condition]) -> pa.Table:
    """Return refined rows by identity; `thinned` marks dropped payloads, `aged` possibly expired readings."""
    found = []
    bronze = known.bronze
    ends = {history.history: history.done or 0 for history in known.histories}
    thinned = {history.history: bronze.offset(history.thinned) or 0 for history in known.histories}
    for piece in batches(bronze, _COLUMNS, where):
        piece = piece.append_column("thinned", pa.array(upto(piece, thinned)))
        aged = pc.less(piece["arrived"].cast(pa.int64()), known.kept_since)
        piece = piece.append_column("aged", pc.fill_null(aged, False))
        found.append(piece.filter(pa.array(upto(piece, ends))))
    if not found:
        fields = [bronze.schema.field(name) for name in _COLUMNS]
        return pa.schema([*fields, ("thinned", pa.bool_()), ("aged", pa.bool_())]).empty_table()
    return pa.concat_tables(found).combine_chunks()


def _other_content(quarantine: Table) -> set[str]:
    held = rows(quarantine, [*HUB_KEY], [("reason", "=", str(QuarantineReason.OTHER_CONTENT))])
    return set(keys(held, HUB_KEY).to_pylist())
