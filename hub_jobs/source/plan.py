"""Converts offsets to partitions, without a server. Pure.

As in Spark's Kafka source, an offset is the next record's sequence: start included, end excluded. Ranges
include both ends.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from hub_jobs.source.streams import HubStream

DEFAULT_RECORDS: Final = 500_000
"""Default records per partition: some seconds of reading."""
WORTH_A_TASK: Final = 10_000
"""Fewer records take less time than a task's start."""
MAX_PARTITIONS: Final = 10_000

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_EARLIEST_NUMBER: Final = -2
_LATEST_NUMBER: Final = -1
_MAX_SEQUENCE: Final = 2**63 - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FRACTION: Final = re.compile(r"\.([0-9]{1,9})")


class PlanError(ValueError):
    """Offsets or sizes make no plan; the text has the remedy."""


class OffsetLost(PlanError):  # noqa: N818
    """Requested records are gone, or the stream is another."""


@dataclass(frozen=True, slots=True)
class Range:
    """Sequences `first` to `last` of one history, both included, for one task."""

    stream: str
    created: str
    first: int
    last: int

    @property
    def size(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Offset:
    """A start or end in one stream: `earliest`, `latest` or a sequence, possibly of one history."""

    at: int | Literal["earliest", "latest"]
    created: str | None = None


@dataclass(frozen=True, slots=True)
class Offsets:
    """Starts or ends: in `every` stream, by stream, or at the first record stored from `moment` (ns since
    1970).
    """

    every: Offset | None
    by_stream: Mapping[str, Offset]
    option: str
    """The originating option, for errors."""
    moment: int | None = None

    def located(self, info: HubStream, sequence: int) -> Offsets:
        """Resolve the moment for one stream to the server's sequence."""
        held = min(max(sequence, info.first_seq, 1), info.last_seq + 1)
        return Offsets(Offset(held, info.created), {}, self.option)

    def of(self, stream: str) -> Offset:
        """Return a stream's offset. Raises PlanError when it has none."""
        if self.every is not None:
            return self.every
        if stream not in self.by_stream:
            raise PlanError(
                f"{self.option} does not name the stream {stream}; name every stream that is read"
            )
        return self.by_stream[stream]


def parse_offsets(text: str, option: str) -> Offsets:
    """Parse `earliest`, `latest` or JSON such as `{"TELEMETRY_0": 17}`.

    A JSON offset is a sequence from 1, -2 for earliest, -1 for latest, or `{"seq": 17, "created": "<of
    STREAM.INFO>"}` for one history. Raises PlanError.
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
    """Parse RFC 3339 with offset, or milliseconds since 1970. Raises PlanError."""
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
    """Return ns since 1970; Python's parser stops at microseconds."""
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


def resolve(info: HubStream, starting: Offsets, ending: Offsets, fail_on_loss: bool) -> Range:
    """Return the range of one stream; `size` 0 when nothing to read.

    Raises OffsetLost for missing records (unless `fail_on_loss` is off) or another history, PlanError when
    the end precedes the start.
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


def _sequence(info: HubStream, offsets: Offsets, earliest: int, latest: int) -> int:
    offset = offsets.of(info.name)
    if offset.created is not None and offset.created != info.created:
        raise OffsetLost(
            f"stream {info.name} was recreated at {info.created}, and {offsets.option} is of the one of "
            f"{offset.created}: its sequences mean other messages now. Start at earliest"
        )
    if offset.at == EARLIEST:
        return earliest
    return latest if offset.at == LATEST else int(offset.at)


def _check_held(info: HubStream, option: str, offset: int, lowest: int, latest: int) -> None:
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
    """Return the default number of partitions: one per parallel task, each worth a task."""
    return max(1, min(parallelism, sum(range_.size for range_ in ranges) // WORTH_A_TASK))


def split(
    ranges: Sequence[Range], min_partitions: int = 1, max_records: int = DEFAULT_RECORDS
) -> list[Range]:
    """Cut ranges into nearly equal partitions of at most `max_records`, and at least `min_partitions` if
    possible.

    Raises PlanError for sizes below 1 and above MAX_PARTITIONS.
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
