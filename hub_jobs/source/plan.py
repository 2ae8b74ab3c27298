"""From offsets to partitions: which fixed ranges of which streams a read consists of. Pure; asks no server.

An offset is the sequence of the next record, as in Spark's Kafka source: where a read starts is included,
where it ends is not. Ranges have both ends included, as sequences of a stream do.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from hub_jobs.source.streams import StreamInfo

DEFAULT_RECORDS: Final = 500_000
"""Records of a partition when nothing is said: some seconds of reading, and few consumers on the server."""
WORTH_A_TASK: Final = 10_000
"""Fewer records than this are read in less time than a task of their own takes to begin."""
MAX_PARTITIONS: Final = 10_000

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_EARLIEST_NUMBER: Final = -2
_LATEST_NUMBER: Final = -1
_MAX_SEQUENCE: Final = 2**63 - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FRACTION: Final = re.compile(r"\.([0-9]{1,9})")


class PlanError(ValueError):
    """The offsets or sizes that were asked for make no plan. Says what to give instead."""


class OffsetLost(PlanError):  # noqa: N818
    """The records that were asked for are not in the stream any more, or it is another stream."""


@dataclass(frozen=True, slots=True)
class Range:
    """Sequences `first` to `last` of one history of a stream, both included: what one task reads."""

    stream: str
    created: str
    first: int
    last: int

    @property
    def size(self) -> int:
        """How many sequences."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Offset:
    """Where to start or end in one stream: `earliest`, `latest` or a sequence, of one history if it is
    given.
    """

    at: int | Literal["earliest", "latest"]
    created: str | None = None


@dataclass(frozen=True, slots=True)
class Offsets:
    """Where to start or end: the same in `every` stream, or by stream, or at the first record that was
    stored at or after a `moment` (ns since 1970), which only the server can find."""

    every: Offset | None
    by_stream: Mapping[str, Offset]
    option: str
    """The option it was read from, for what is said of it."""
    moment: int | None = None

    def located(self, info: StreamInfo, sequence: int) -> Offsets:
        """The same for one stream once the server has said at which sequence the moment lies."""
        held = min(max(sequence, info.first_seq, 1), info.last_seq + 1)
        return Offsets(Offset(held, info.created), {}, self.option)

    def of(self, stream: str) -> Offset:
        """The offset for a stream. Raises PlanError when it is not named."""
        if self.every is not None:
            return self.every
        if stream not in self.by_stream:
            raise PlanError(
                f"{self.option} does not name the stream {stream}; name every stream that is read"
            )
        return self.by_stream[stream]


def parse_offsets(text: str, option: str) -> Offsets:
    """Read `earliest`, `latest` or JSON such as `{"TELEMETRY_0": 17}`.

    In JSON an offset is a sequence from 1 on, -2 for earliest or -1 for latest, or
    `{"seq": 17, "created": "<as STREAM.INFO says it>"}`, which holds for that history of the stream only.
    Raises PlanError in words.
    """
    word = text.strip()
    if word.lower() in (EARLIEST, LATEST):
        return Offsets(_offset(word.lower(), option), {}, option)
    try:
        document = json.loads(word)
    except ValueError as error:
        raise PlanError(f"{option} is {text!r}; give earliest, latest or JSON by stream") from error
    if not isinstance(document, dict) or not document:
        raise PlanError(f'{option} must be a JSON object such as {{"TELEMETRY_0": 17}}')
    return Offsets(
        None, {stream: _offset(value, f"{option}[{stream!r}]") for stream, value in document.items()}, option
    )


def parse_moment(text: str, option: str) -> Offsets:
    """Read RFC 3339 with an offset, such as `2026-11-21T06:00:00Z`, or milliseconds since 1970. Raises
    PlanError in words."""
    word = text.strip()
    try:
        if word.isascii() and word.isdigit():
            moment = int(word) * 1_000_000
            _EPOCH + timedelta(microseconds=moment // 1000)
        else:
            moment = _nanoseconds(word)
    except (ValueError, OverflowError) as error:
        raise PlanError(
            f"{option} is {text[:80]!r}; give 2026-11-21T06:00:00Z or milliseconds since 1970"
        ) from error
    return Offsets(None, {}, option, moment)


def _nanoseconds(word: str) -> int:
    """Ns since 1970; Python's own parser stops at microseconds."""
    fraction = _FRACTION.search(word)
    whole = datetime.fromisoformat(_FRACTION.sub("", word, count=1))
    if whole.tzinfo is None or whole < _EPOCH:
        raise ValueError("without an offset, or before 1970")
    nanoseconds = int(f"{fraction[1]:0<9}") if fraction else 0
    return (whole - _EPOCH) // timedelta(seconds=1) * 1_000_000_000 + nanoseconds


def _offset(value: object, where: str) -> Offset:
    created: str | None = None
    if isinstance(value, dict):
        created = value.get("created")
        if set(value) - {"created"} != {"seq"} or not isinstance(created, str | None):
            raise PlanError(f'{where} must look like {{"seq": 17, "created": "2026-11-21T06:00:00Z"}}')
        value = value["seq"]
    if value in (EARLIEST, _EARLIEST_NUMBER):
        return Offset("earliest", created)
    if value in (LATEST, _LATEST_NUMBER):
        return Offset("latest", created)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MAX_SEQUENCE:
        raise PlanError(f"{where} is {value!r}; give a sequence from 1 on, -2 for earliest or -1 for latest")
    return Offset(value, created)


def resolve(info: StreamInfo, starting: Offsets, ending: Offsets, fail_on_loss: bool) -> Range:
    """The range of one stream; its `size` is 0 when there is nothing to read.

    Raises OffsetLost when records that were asked for are gone (with `fail_on_loss`; without it the range is
    what is left) or the offset is of another history (always), PlanError when the end lies before the
    start.
    """
    earliest, latest = max(info.first_seq, 1), info.last_seq + 1
    start = _sequence(info, starting, earliest, latest)
    end = _sequence(info, ending, earliest, latest)
    if fail_on_loss:
        _check_held(info, starting.option, start, earliest, latest)
        _check_held(info, ending.option, end, 1, latest)
        if start > end:
            raise PlanError(f"stream {info.name}: {starting.option} is {start}, after {ending.option}, {end}")
    start, end = min(max(start, earliest), latest), min(max(end, earliest), latest)
    return Range(info.name, info.created, start, max(end, start) - 1)


def _sequence(info: StreamInfo, offsets: Offsets, earliest: int, latest: int) -> int:
    offset = offsets.of(info.name)
    if offset.created is not None and offset.created != info.created:
        raise OffsetLost(
            f"stream {info.name} was recreated at {info.created}, and {offsets.option} is of the one of "
            f"{offset.created}: its sequences mean other messages now. Start at earliest"
        )
    if offset.at == EARLIEST:
        return earliest
    return latest if offset.at == LATEST else int(offset.at)


def _check_held(info: StreamInfo, option: str, offset: int, lowest: int, latest: int) -> None:
    remedy = "Set failOnDataLoss to false to read what is there"
    if offset < lowest:
        raise OffsetLost(
            f"stream {info.name}: {option} is {offset} and the stream begins at {lowest}: {lowest - offset} "
            f"records were purged, expired or deleted. {remedy}"
        )
    if offset > latest:
        raise OffsetLost(
            f"stream {info.name}: {option} is {offset} and the stream ends before {latest}: it was restored "
            f"or recreated, or the offset is of another stream. {remedy}"
        )


def usual_partitions(ranges: Sequence[Range], parallelism: int) -> int:
    """Into how many partitions ranges are cut when nothing is said: one for each task that runs at once, but
    none of less than is worth a task."""
    return max(1, min(parallelism, sum(range_.size for range_ in ranges) // WORTH_A_TASK))


def split(
    ranges: Sequence[Range], min_partitions: int = 1, max_records: int = DEFAULT_RECORDS
) -> list[Range]:
    """Cut ranges into partitions of nearly equal size, in order: none empty, none above `max_records`
    sequences, and at least `min_partitions` of them when there are that many sequences.

    Raises PlanError for sizes below 1 and for more than MAX_PARTITIONS.
    """
    if min_partitions < 1 or max_records < 1:
        raise PlanError("minPartitions and maxRecordsPerPartition must be 1 or more")
    held = [range_ for range_ in ranges if range_.size > 0]
    total = sum(range_.size for range_ in held)
    target = min(max_records, max(1, -(-total // min_partitions)))
    counts = [-(-range_.size // target) for range_ in held]
    if sum(counts) < min(min_partitions, total):
        target = min(max_records, max(1, total // min_partitions))
        counts = [-(-range_.size // target) for range_ in held]
    if sum(counts) > MAX_PARTITIONS:
        raise PlanError(
            f"{sum(counts)} partitions would be needed and {MAX_PARTITIONS} is the limit: "
            "raise maxRecordsPerPartition, lower minPartitions or read less at once"
        )
    return [part for range_, count in zip(held, counts, strict=True) for part in _cut(range_, count)]


def _cut(whole: Range, count: int) -> list[Range]:
    edges = [whole.first + whole.size * number // count for number in range(count + 1)]
    return [
        Range(whole.stream, whole.created, edges[number], edges[number + 1] - 1) for number in range(count)
    ]
