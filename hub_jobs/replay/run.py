"""The job `replay`: decodes a range of `bronze` again, in the place of what came of it before.

For what was decoded wrongly, or lost from a table. `quarantine` is put right first and `readings` last; a run
that is killed between the two leaves rows missing in neither, and is made whole by running it again.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from agent.contract import Exit
from hub_jobs.exits import ended, say
from hub_jobs.refine import clock_table, task
from hub_jobs.refine.clocks import Corrections
from hub_jobs.refine.messages import QuarantineReason
from hub_jobs.refine.plan import RefineTables
from hub_jobs.replay.selection import BATCH, MESSAGE, PLACE, Again, chosen, keys
from hub_jobs.session import run_tasks
from hub_jobs.tables import Condition, ConflictError, Table, ensure_table, open_table, stream_history
from hub_jobs.tables.compaction import without
from hub_jobs.tables.places import Place, parse_place
from hub_jobs.tables.ranges import History
from hub_jobs.tables.scan import batches, file_paths, rows
from hub_jobs.tables.stream_history import StreamHistory
from hub_jobs.times import moment

_NAME: Final = "replay"
_COLUMNS: Final = (*MESSAGE, *BATCH, *PLACE, "digest")


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """What the command line says; both ends of a range belong to it, None where it is open."""

    lake: Place
    stream: str
    created: str | None
    first: int | None
    last: int | None
    since: datetime | None
    until: datetime | None
    dry_run: bool


def main(argv: Sequence[str] | None = None) -> Exit:
    """Run the job and return its exit code."""
    options = _options(argv)
    return ended(_NAME, lambda: run(options))


def run(options: ReplayOptions) -> Exit:
    """Replay a range. Raises `ConflictError` when another job rewrote a table meanwhile."""
    bronze = open_table(options.lake, "bronze")
    if bronze is None:
        say(_NAME, f"there is no table {options.lake / 'bronze'}: give --lake the directory of the tables")
        return Exit.USAGE
    readings, quarantine = ensure_table(options.lake, "readings"), ensure_table(options.lake, "quarantine")
    refined = stream_history.refined(stream_history.all_of(bronze), readings)
    wanted = _wanted(options, bronze, refined)
    again = chosen(wanted, _with_keys_of(bronze, wanted, refined), _other_content(quarantine))
    if again.thinned:
        say(_NAME, f"{again.thinned} messages stay as they are: their payloads were dropped")
    count = sum(map(len, again.decoded.values()))
    say(_NAME, f"{count} of {wanted.num_rows} messages of {options.stream} are decoded again")
    if not count or options.dry_run:
        return Exit.WELL
    corrections = clock_table.load(options.lake, bronze, refined).by_domain()
    _replay(options.lake, RefineTables(bronze, readings, quarantine), again, corrections)
    return Exit.WELL


def _replay(lake: Place, tables: RefineTables, again: Again, corrections: Corrections) -> None:
    from hub_jobs.session import session

    bronze, readings, quarantine = tables
    parts = [
        task.RefinePart(
            lake, [path], history, min(seqs) - 1, max(seqs), only=frozenset(seqs), corrections=corrections
        )
        for history, seqs in sorted(again.decoded.items())
        for path in file_paths(bronze, StreamHistory(*history).rows(min(seqs) - 1, max(seqs)))
    ]
    done = run_tasks(session(_NAME), task.refine, parts)
    new_readings = [file for one in done for file in one.readings]
    new_named = [file for one in done for file in one.quarantine]
    named = without(lake, quarantine, lambda rows: _messages_of(rows, again), [*MESSAGE, "reason"])
    old = without(lake, readings, lambda rows: _came_of(rows, again), [*BATCH, *PLACE])
    try:
        quarantine.rewrite([*new_named, *named.kept], named.replaced, changed=True)
    except ConflictError:
        readings.discard([*new_readings, *old.kept])
        raise
    readings.rewrite([*new_readings, *old.kept], old.replaced, changed=True)
    say(
        _NAME,
        f"{sum(file.rows for file in new_readings)} readings in the place of {old.rows}, "
        f"{sum(file.rows for file in new_named)} rows of quarantine in the place of {named.rows}",
    )


def _messages_of(held: pa.Table, again: Again) -> pa.Array:
    """The rows of quarantine that come again; whose content was another than its repeat's is found by
    comparing, not by decoding, and stays."""
    compared = pc.is_in(held["reason"], value_set=pa.array([str(QuarantineReason.OTHER_CONTENT)]))
    return pc.and_not(_is_in(keys(held, MESSAGE), again.messages), compared)


def _came_of(held: pa.Table, again: Again) -> pa.Array:
    batch = _is_in(keys(held, BATCH), again.batches)
    place = pc.and_(pc.is_null(held["n"]), _is_in(keys(held, PLACE), again.places))
    return pc.or_(batch, place)


def _is_in(found: pa.Array, wanted: set[str]) -> pa.Array:
    return pc.is_in(found, value_set=pa.array(sorted(wanted), pa.string()))


def _wanted(options: ReplayOptions, bronze: Table, refined: Sequence[StreamHistory]) -> pa.Table:
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
    return _identities(bronze, where, refined)


def _with_keys_of(bronze: Table, wanted: pa.Table, refined: Sequence[StreamHistory]) -> pa.Table:
    """All rows of bronze that may have a key of the wanted ones."""
    pieces = [wanted]
    for column, number in (("run", "n"), ("source_stream", "source_seq")):
        some = wanted.filter(pc.is_valid(wanted["run"]) if column == "run" else pc.is_null(wanted["n"]))
        if not some.num_rows:
            continue
        least = pc.min_max(some[number])
        where: list[Condition] = [(column, "in", pc.unique(some[column]).drop_null().to_pylist())]
        if least["min"].is_valid:
            where += [(number, ">=", least["min"].as_py()), (number, "<=", least["max"].as_py())]
        pieces.append(_identities(bronze, where, refined))
    every = pa.concat_tables(pieces)
    first = every.append_column("at", pa.array(range(every.num_rows), pa.int64())).append_column(
        "message", keys(every, MESSAGE)
    )
    return every.take(first.group_by("message").aggregate([("at", "min")])["at_min"].sort())


def _identities(bronze: Table, where: Sequence[Condition], refined: Sequence[StreamHistory]) -> pa.Table:
    """The rows that are refined, by what they are; `thinned` says that the payload was dropped."""
    found = []
    ends = {one.history: one.done or 0 for one in refined}
    thinned = {one.history: bronze.offset(one.thinned) or 0 for one in refined}
    for batch in batches(bronze, _COLUMNS, where):
        piece = pa.Table.from_batches([batch])
        piece = piece.append_column("thinned", _below(piece, thinned))
        found.append(piece.filter(_below(piece, ends)))
    if not found:
        fields = [bronze.schema.field(name) for name in _COLUMNS]
        return pa.schema([*fields, pa.field("thinned", pa.bool_())]).empty_table()
    return pa.concat_tables(found).combine_chunks()


def _below(piece: pa.Table, offsets: dict[History, int]) -> pa.Array:
    ends = [
        offsets.get(pair, 0)
        for pair in zip(piece["stream"].to_pylist(), piece["created"].to_pylist(), strict=True)
    ]
    return pc.less_equal(piece["seq"], pa.array(ends, pa.int64()))


def _other_content(quarantine: Table) -> set[str]:
    held = rows(quarantine, [*MESSAGE], [("reason", "=", str(QuarantineReason.OTHER_CONTENT))])
    return set(keys(held, MESSAGE).to_pylist())


def _options(argv: Sequence[str] | None) -> ReplayOptions:
    parser = argparse.ArgumentParser(prog="replay.py", description="Decode a range of `bronze` again.")
    parser.add_argument("--lake", required=True, type=parse_place, help="the directory of the tables")
    parser.add_argument("--stream", required=True, help="the hub's stream, such as TELEMETRY_0")
    parser.add_argument("--created", help="one incarnation of it only, as the column says")
    parser.add_argument("--from-seq", type=int, metavar="N", help="the first hub sequence")
    parser.add_argument("--to-seq", type=int, metavar="N", help="the last hub sequence")
    parser.add_argument("--since", type=moment, metavar="TIME", help="arrived at or after, RFC 3339")
    parser.add_argument("--until", type=moment, metavar="TIME", help="arrived at or before, RFC 3339")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    given = parser.parse_args(argv)
    bounds = (given.from_seq, given.to_seq, given.since, given.until)
    if all(one is None for one in bounds):
        parser.error("give a range: --from-seq, --to-seq, --since or --until")
    return ReplayOptions(given.lake, given.stream, given.created, *bounds, given.dry_run)
