"""Plans the batches of a streaming query. Pure.

A position is the next record's sequence in one history; Spark stores all positions as an offset. A new stream
or history gets a position before it is read, so two offsets define a batch and repeats are equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hub_jobs.source.plan import OffsetLost, PlanError, Range
from hub_jobs.source.streams import HubStream

_REMEDY = "Set failOnDataLoss to false to go on with what is there"


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """`seq` is the next record's sequence in the history `created`."""

    created: str
    seq: int


StreamPositions = dict[str, StreamPosition]


def encode(positions: Mapping[str, StreamPosition]) -> dict[str, Any]:
    """Return positions in Spark's form; as JSON it is valid for `startingOffsets`."""
    return {
        stream: {"created": position.created, "seq": position.seq}
        for stream, position in sorted(positions.items())
    }


def decode(offset: Mapping[str, Any]) -> StreamPositions:
    """Parse positions. Raises PlanError for a foreign checkpoint."""
    try:
        return {
            stream: StreamPosition(str(position["created"]), int(position["seq"]))
            for stream, position in offset.items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PlanError(f"the checkpoint's offset {offset!r:.200} is none of this source") from error


def begun(ranges: Mapping[str, Range]) -> StreamPositions:
    """Return a new query's positions, the first of each range."""
    return {stream: StreamPosition(part.created, part.first) for stream, part in ranges.items()}


def ends(infos: Mapping[str, HubStream]) -> StreamPositions:
    """Return the positions after all present records."""
    return {stream: StreamPosition(info.created, info.last_seq + 1) for stream, info in infos.items()}


def advance(
    positions: Mapping[str, StreamPosition],
    infos: Mapping[str, HubStream],
    target: Mapping[str, StreamPosition],
    most: int | None,
    fail_on_loss: bool,
) -> StreamPositions:
    """Return positions after the next batch: up to `target` and `most` sequences, shared by backlog.

    Returns `positions` without new records. Raises OffsetLost for missing records or another stream, unless
    `fail_on_loss` is off.
    """
    after = dict(positions)
    backlog: dict[str, int] = {}
    for stream, info in infos.items():
        position = positions.get(stream)
        after[stream] = now = _standing(position, info, fail_on_loss)
        end = target.get(stream)
        if position is not None and position.created == now.created and end is not None:
            backlog[stream] = _last(end, info) - now.seq + 1
    if fail_on_loss and (gone := sorted(positions.keys() - infos.keys())):
        raise OffsetLost(f"stream {gone[0]} is not there any more. {_REMEDY}")
    for stream, share in shares(backlog, most).items():
        after[stream] = StreamPosition(after[stream].created, after[stream].seq + share)
    return after


def shares(backlog: Mapping[str, int], most: int | None) -> dict[str, int]:
    """Split `most` sequences among streams in proportion to their backlog."""
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
    """Return the ranges between two offsets."""
    found = []
    for stream, to in sorted(end.items()):
        since = start.get(stream)
        if since is not None and since.created == to.created and since.seq < to.seq:
            found.append(Range(stream, to.created, since.seq, to.seq - 1))
    return found


def check(part: Range, info: HubStream | None) -> None:
    """Raise OffsetLost when the stream lacks part of this range."""
    if info is None:
        raise OffsetLost(f"stream {part.stream} is not there any more. {_REMEDY}")
    _standing(StreamPosition(part.created, part.first), info, True)
    if info.last_seq < part.last:
        _put_back(part.stream, part.last, info)


def remaining(part: Range, info: HubStream | None) -> Range:
    """Return what the stream still has of a range; nothing for a lost history, whose batch could
    never end.
    """
    held = info is not None and info.created == part.created
    last = min(part.last, info.last_seq) if info is not None and held else 0
    return replace(part, last=max(last, part.first - 1))


def _standing(position: StreamPosition | None, info: HubStream, fail_on_loss: bool) -> StreamPosition:
    """Return the position in the present stream."""
    earliest, latest = max(info.first_seq, 1), info.last_seq + 1
    if position is None:
        return StreamPosition(info.created, earliest)
    if position.created != info.created:
        if fail_on_loss:
            raise OffsetLost(
                f"stream {info.name} was recreated at {info.created}, and the query has read the one of "
                f"{position.created}: its sequences mean other messages now. {_REMEDY}, from its beginning"
            )
        return StreamPosition(info.created, earliest)
    if fail_on_loss and position.seq > latest:
        _put_back(info.name, position.seq - 1, info)
    if fail_on_loss and position.seq < earliest:
        raise OffsetLost(
            f"stream {info.name} begins at {earliest}, and {position.seq} was to be read next: "
            f"{earliest - position.seq} records were purged, expired or deleted. {_REMEDY}"
        )
    return StreamPosition(position.created, min(max(position.seq, earliest), latest))


def _put_back(stream: str, seq: int, info: HubStream) -> None:
    raise OffsetLost(
        f"stream {stream} ends at {info.last_seq}, and the query has read or planned up to {seq}: it was put "
        f"back to an earlier state. {_REMEDY}"
    )


def _last(end: StreamPosition, info: HubStream) -> int:
    """Return the last sequence to read; for another history than the target's, everything present."""
    return min(end.seq - 1, info.last_seq) if end.created == info.created else info.last_seq
