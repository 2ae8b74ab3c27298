"""How far a streaming query has come, and what it may read next. Pure: it asks no server.

A place is the sequence of the next record in one history of a stream; the places of all streams are what
Spark keeps as an offset. A stream or history that is met for the first time gets a place before anything
of it is read: so what a batch consists of stands in its two offsets alone, and a batch that is run again
after a crash is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hub_jobs.source.plan import OffsetLost, PlanError, Range
from hub_jobs.source.streams import StreamInfo

_REMEDY = "Set failOnDataLoss to false to go on with what is there"


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """`seq` is the sequence of the next record of the history `created`."""

    created: str
    seq: int


Places = dict[str, StreamPosition]


def encode(places: Mapping[str, StreamPosition]) -> dict[str, Any]:
    """The places as Spark keeps them; as JSON they are also what `startingOffsets` takes."""
    return {stream: {"created": place.created, "seq": place.seq} for stream, place in sorted(places.items())}


def decode(offset: Mapping[str, Any]) -> Places:
    """Read places back. Raises PlanError for a checkpoint that something else wrote."""
    try:
        return {
            stream: StreamPosition(str(position["created"]), int(position["seq"]))
            for stream, position in offset.items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PlanError(f"the checkpoint's offset {offset!r:.200} is none of this source") from error


def begun(ranges: Mapping[str, Range]) -> Places:
    """Where a new query begins: at the first sequence of each range."""
    return {stream: StreamPosition(part.created, part.first) for stream, part in ranges.items()}


def ends(infos: Mapping[str, StreamInfo]) -> Places:
    """The places behind all that the streams hold."""
    return {stream: StreamPosition(info.created, info.last_seq + 1) for stream, info in infos.items()}


def advance(
    places: Mapping[str, StreamPosition],
    infos: Mapping[str, StreamInfo],
    target: Mapping[str, StreamPosition],
    most: int | None,
    fail_on_loss: bool,
) -> Places:
    """The places after the next batch: at most `target`, and at most `most` sequences further in all, shared
    among the streams by what each still holds. Equal to `places` when there is nothing to do.

    Raises OffsetLost, with `fail_on_loss`, when records that were not read yet are gone or a stream is
    another one; without it the query goes on with what is there.
    """
    after = dict(places)
    backlog: dict[str, int] = {}
    for stream, info in infos.items():
        place = places.get(stream)
        after[stream] = now = _standing(place, info, fail_on_loss)
        end = target.get(stream)
        if place is not None and place.created == now.created and end is not None:
            backlog[stream] = _last(end, info) - now.seq + 1
    if fail_on_loss and (gone := sorted(places.keys() - infos.keys())):
        raise OffsetLost(f"stream {gone[0]} is not there any more. {_REMEDY}")
    for stream, share in shares(backlog, most).items():
        after[stream] = StreamPosition(after[stream].created, after[stream].seq + share)
    return after


def shares(backlog: Mapping[str, int], most: int | None) -> dict[str, int]:
    """How many sequences of each stream a batch takes, `most` in all: in proportion to what each holds, so
    that none waits for another to be empty."""
    held = {stream: max(0, size) for stream, size in backlog.items()}
    total = sum(held.values())
    if most is None or total <= most:
        return held
    taken = {stream: size * most // total for stream, size in held.items()}
    left = most - sum(taken.values())
    by_rest = sorted(held, key=lambda stream: (-(held[stream] * most % total), stream))
    for stream in by_rest[:left]:
        taken[stream] += 1
    return taken


def ranges(start: Mapping[str, StreamPosition], end: Mapping[str, StreamPosition]) -> list[Range]:
    """What lies between two offsets."""
    found = []
    for stream, to in sorted(end.items()):
        since = start.get(stream)
        if since is not None and since.created == to.created and since.seq < to.seq:
            found.append(Range(stream, to.created, since.seq, to.seq - 1))
    return found


def check(part: Range, info: StreamInfo | None) -> None:
    """Raises OffsetLost when the stream no longer holds this range whole."""
    if info is None:
        raise OffsetLost(f"stream {part.stream} is not there any more. {_REMEDY}")
    _standing(StreamPosition(part.created, part.first), info, True)
    if info.last_seq < part.last:
        _put_back(part.stream, part.last, info)


def remaining(part: Range, info: StreamInfo | None) -> Range:
    """What of a range the stream still holds behind its first sequence, for a query that goes on with what is
    there: nothing of a history that is gone, or the batch that was planned on it could never end."""
    held = info is not None and info.created == part.created
    last = min(part.last, info.last_seq) if info is not None and held else 0
    return replace(part, last=max(last, part.first - 1))


def _standing(place: StreamPosition | None, info: StreamInfo, fail_on_loss: bool) -> StreamPosition:
    """The place as it is in the stream that is there now."""
    earliest, latest = max(info.first_seq, 1), info.last_seq + 1
    if place is None:
        return StreamPosition(info.created, earliest)
    if place.created != info.created:
        if fail_on_loss:
            raise OffsetLost(
                f"stream {info.name} was recreated at {info.created}, and the query has read the one of "
                f"{place.created}: its sequences mean other messages now. {_REMEDY}, from its beginning"
            )
        return StreamPosition(info.created, earliest)
    if fail_on_loss and place.seq > latest:
        _put_back(info.name, place.seq - 1, info)
    if fail_on_loss and place.seq < earliest:
        raise OffsetLost(
            f"stream {info.name} begins at {earliest}, and {place.seq} was to be read next: "
            f"{earliest - place.seq} records were purged, expired or deleted. {_REMEDY}"
        )
    return StreamPosition(place.created, min(max(place.seq, earliest), latest))


def _put_back(stream: str, seq: int, info: StreamInfo) -> None:
    raise OffsetLost(
        f"stream {stream} ends at {info.last_seq}, and the query has read or planned up to {seq}: it was put "
        f"back to an earlier state. {_REMEDY}"
    )


def _last(end: StreamPosition, info: StreamInfo) -> int:
    """The last sequence that may be read: of another history than the target's, all that is there."""
    return min(end.seq - 1, info.last_seq) if end.created == info.created else info.last_seq
