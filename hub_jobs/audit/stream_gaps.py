"""Finds sequences of hub and leaf streams that never arrived, with bronze's reason."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from agent.contract import leaf_stream
from agent.contract.ranges import Range, holes, intersection, union, without
from hub_jobs.audit.bronze_contents import BronzeContents
from hub_jobs.audit.gap_reasons import Gap, Neighbours, joined, missing_of_restored, of_source
from hub_jobs.audit.ledgers import LedgerClaims, LostStores, Origin, Source
from hub_jobs.audit.rows.scan import Unreadable
from hub_jobs.tables import gap_notes
from hub_jobs.tables.delta import Table
from hub_jobs.tables.gap_notes import GapReason, reason_by_limits
from hub_jobs.tables.ranges import History
from hub_jobs.tables.scan import Condition, batches
from hub_jobs.tables.spaces import SeenNumbers, hub_space, source_space
from hub_jobs.tables.stream_history import StreamHistory

if TYPE_CHECKING:
    from hub_jobs.source.streams import HubStream

_LOOKED_AT: Final = 1_000
"""Holes of a source examined one by one."""

HubGaps = Mapping[History, Sequence[tuple[Range, GapReason]]]


def find_gaps(
    bronze: Table,
    held: BronzeContents,
    claims: LedgerClaims,
    hub: Mapping[str, HubStream],
    unreadable: Sequence[Unreadable] = (),
) -> list[Gap]:
    """Return all gaps, the hub's first.

    `claims` are the leaves' discards and store losses, `hub` the present streams as far as known. Gaps may
    lie in `unreadable` files.
    """
    ever, origins = held.ever, claims.origins
    at_hub = _of_hub(bronze, held, ever, hub, unreadable)
    found = [
        Gap("hub", "/".join(history), [hole], why) for history, holes in at_hub.items() for hole, why in holes
    ]
    removed = _removed(at_hub)
    for space, ranges in sorted(ever.spaces.items()):
        kind, _, name = space.partition("/")
        if kind == "source":
            stream, identity = name.split("/", 1)
            named = [claims.gone.get(origin, []) for origin in origins.get((stream, identity), ())]
            discarded = union((first, last) for evicted in named for first, last, _, _ in evicted)
            here = held.here.ranges(space)
            found += _of_source(bronze, (stream, identity), (ranges, here), discarded, at_hub)
            if was_there := held.gone.ranges(space):
                found.append(Gap("source", name, was_there, removed))
    return joined([*found, *_of_lost(ever, origins, claims.lost), *_of_replaced(bronze, ever, claims.lost)])


def _of_hub(
    bronze: Table,
    held: BronzeContents,
    ever: SeenNumbers,
    hub: Mapping[str, HubStream],
    unreadable: Sequence[Unreadable],
) -> HubGaps:
    """Return hub sequences missing in bronze up to its offsets."""
    missing: dict[History, list[Range]] = {}
    for space, ranges in sorted(ever.spaces.items()):
        kind, _, name = space.partition("/")
        if kind == "hub":
            stream, created = name.split("/", 1)
            end = bronze.offset(StreamHistory(stream, created).ingested) or 0
            due = [(ranges[0][0], max(end, ranges[-1][1]))]
            if lacking := without(due, held.here.ranges(space)):
                missing[stream, created] = lacking
    if not missing:
        return {}
    noted = gap_notes.noted(bronze, missing)
    return {
        history: list(
            _reasons(
                lacking,
                [*_known(history, held, unreadable), *noted[history]],
                history,
                hub.get(history[0]),
            )
        )
        for history, lacking in missing.items()
    }


def _known(
    history: History, held: BronzeContents, unreadable: Sequence[Unreadable]
) -> Iterator[tuple[Range, GapReason]]:
    for file in unreadable:
        if file.table == "bronze" and file.may_hold(stream=history[0], created=history[1]):
            yield file.sequences, GapReason.UNREADABLE
    for one_range in held.gone.ranges(hub_space(*history)):
        yield one_range, GapReason.REMOVED


def _removed(at_hub: HubGaps) -> GapReason:
    """Return why source messages are gone from bronze: unreadable files when these hold all of them."""
    reasons = {why for holes in at_hub.values() for _, why in holes}
    return (
        GapReason.UNREADABLE
        if GapReason.UNREADABLE in reasons and GapReason.REMOVED not in reasons
        else GapReason.REMOVED
    )


def _reasons(
    lacking: Sequence[Range],
    noted: Sequence[tuple[Range, GapReason]],
    history: History,
    now: HubStream | None,
) -> Iterator[tuple[Range, GapReason]]:
    """Split holes by the reason noted at ingest, else by the stream's limits now."""
    rest = list(lacking)
    for span, why in noted:
        for part in intersection(rest, [span]):
            yield part, why
        rest = without(rest, [span])
    if now is None or now.created != history[1].partition("~")[0]:
        yield from ((part, GapReason.UNKNOWN) for part in rest)
    else:
        yield from ((part, reason_by_limits(now)) for part in rest)


def _of_lost(seen: SeenNumbers, origins: Mapping[Source, set[Origin]], lost: LostStores) -> Iterator[Gap]:
    """Yield the missing ends of lost streams."""
    for origin, last in sorted(lost.streams.items()):
        high = _highest(seen, origins, origin)
        if high < last:
            # Where nothing of it ever came the lake may have begun later.
            yield _store_gap(origin, [(high + 1, last)], lost=high > 0)


def _of_replaced(bronze: Table, seen: SeenNumbers, lost: LostStores) -> Iterator[Gap]:
    """Yield the missing ends of streams restored from an older store."""
    for source in sorted({source for places in lost.tails.values() for source in places}):
        came = seen.ranges(source_space(*source))
        for tail, missing in missing_of_restored(bronze, source, lost):
            if missing:
                known = bool(came) and came[0][0] <= max(tail.kept, 1)
                yield _store_gap(tail.origin, missing, lost=known, at=tail.at)


def _highest(seen: SeenNumbers, origins: Mapping[Source, set[Origin]], origin: Origin) -> int:
    """Return the highest arrived sequence of a stream. A source without origin counts for any stream of its
    leaf.
    """
    stream, high = leaf_stream(*origin[:2]), 0
    for space, ranges in seen.spaces.items():
        kind, _, name = space.partition("/")
        source, _, identity = name.partition("/")
        if (kind, source) == ("source", stream) and origin in origins.get((source, identity), {origin}):
            high = max(high, ranges[-1][1])
    return high


def _moment(ns: int) -> str:
    return f"{datetime.fromtimestamp(ns // 1_000_000_000, UTC):%Y-%m-%dT%H:%M:%S}.{ns % 1_000_000_000:09d}Z"


def _store_gap(origin: Origin, gone: Sequence[Range], *, lost: bool, at: int = 0) -> Gap:
    domain, cls, created = origin
    # Of two restores of one copy each is a finding of its own: the same sequences are gone twice.
    when = f"the store that held them was seen last at {_moment(at)}; " if at else ""
    detail = when + (
        "readings of the agent's batches among them are counted by their runs; what devices published there "
        "after the agent's last look, a second before at most, nobody can name"
    )
    name = f"{leaf_stream(domain, cls)} made {created}"
    return Gap("source", name, gone, GapReason.STORE_LOST, detail, lost=lost)


def _of_source(
    bronze: Table,
    source: tuple[str, str],
    came: tuple[Sequence[Range], Sequence[Range]],
    discarded: list[Range],
    hub: HubGaps,
) -> Iterator[Gap]:
    """Return the holes of a source; `came` has ranges ever and presently in bronze."""
    name = "/".join(source)
    ranges, here = came
    lead = [(1, ranges[0][0] - 1)] if ranges[0][0] > 1 else []
    missing = holes(ranges)
    unnamed = without(missing, discarded)
    explained = without(lead + missing, without(lead + missing, discarded))
    if explained:
        yield Gap("source", name, explained, GapReason.DISCARDED, lost=False)
    if before := without(lead, discarded):
        yield Gap(
            "source", name, before, GapReason.UNKNOWN, "they stand before the first that came", lost=False
        )
    asked = unnamed[:_LOOKED_AT]
    edges = [(_below(here, hole[0]), _above(here, hole[1])) for hole in asked]
    places = _places(bronze, source, sorted({edge for pair in edges for edge in pair})) if edges else {}
    for hole, (below, above) in zip(asked, edges, strict=True):
        yield of_source(name, hole, Neighbours(places.get(below, {}), places.get(above, {})), hub)
    if rest := unnamed[_LOOKED_AT:]:
        yield Gap(
            "source", name, rest, GapReason.UNKNOWN, f"only the first {_LOOKED_AT} holes were looked at"
        )


def _below(ranges: Sequence[Range], number: int) -> int:
    at = bisect_left(ranges, (number, 0))
    return ranges[at - 1][1] if at else 0


def _above(ranges: Sequence[Range], number: int) -> int:
    at = bisect_left(ranges, (number, 0))
    return ranges[at][0] if at < len(ranges) else 0


def _places(bronze: Table, source: tuple[str, str], numbers: Sequence[int]) -> dict[int, dict[History, int]]:
    """Return the first hub sequence of source messages, per history."""
    where: list[Condition] = [("source_stream", "=", source[0]), ("source_identity", "=", source[1])]
    found: dict[int, dict[History, int]] = {}
    columns = ("source_seq", "stream", "created", "seq")
    for rows in batches(bronze, columns, [*where, ("source_seq", "in", numbers)]):
        for number, stream, created, seq in zip(*(rows[name].to_pylist() for name in columns), strict=True):
            held = found.setdefault(number, {})
            held[stream, created] = min(seq, held.get((stream, created), seq))
    return found
