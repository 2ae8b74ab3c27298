"""Reads the batches of this leaf as they pass: by sequence, without a consumer, so nothing is acknowledged,
held or slowed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any, Final

import zstandard

from agent.base.logs import shown
from agent.contract import (
    MAX_UNPACKED_BYTES,
    BatchHeaders,
    ContractError,
    batch_subject,
    leaf_stream,
    parse_batch_headers,
    parse_subject,
)
from agent.jetstream import JetStream, RawMessage

POLL_SECONDS: Final = 0.25
_MAX_SCANNED: Final = 2_000
"""Messages that are read at most to find the last ones that pass the filter."""
_AT_ONCE: Final = 100


@dataclass(frozen=True, slots=True)
class Filter:
    """Which readings are shown: of these inputs (none: all), and with a device and a metric that each fit
    one of the patterns (shell globs; none: all)."""

    inputs: frozenset[str] = frozenset()
    devices: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()

    def passes(self, reading: Mapping[str, Any]) -> bool:
        """Whether a reading is shown."""
        return _fits(reading.get("device"), self.devices) and _fits(reading.get("metric"), self.metrics)


def _fits(name: object, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatchcase(str(name), pattern) for pattern in patterns)


@dataclass(frozen=True, slots=True)
class ShownBatch:
    """A batch at sequence `seq`, and its readings that pass the filter; `problem` where it can't be read."""

    seq: int
    cls: str
    input: str
    headers: BatchHeaders | None
    readings: tuple[Mapping[str, Any], ...] = ()
    problem: str | None = None
    domain: str = ""
    """The device of a reading that names none."""

    def as_json(self) -> str:
        """One line of JSON."""
        headers = self.headers
        row: dict[str, Any] = {"class": self.cls, "input": self.input, "seq": self.seq}
        if headers is not None:
            row |= {
                "run": headers.id.run,
                "n": headers.id.n,
                "count": headers.count,
                "sealed_at": headers.sealed_at,
                "readings": self.readings,
            }
        if self.problem is not None:
            row["problem"] = self.problem
        return json.dumps(row, separators=(",", ":"))

    def as_text(self) -> str:
        """A line for the batch and one for each reading, which a terminal can be given."""
        head = f"{shown(self.cls)} {shown(self.input)} seq {self.seq}"
        if self.headers is None:
            return f"{head}: {shown(self.problem or '')}"
        at = datetime.fromtimestamp(self.headers.sealed_at / 1e9, UTC)
        count = self.headers.count
        number = f"{len(self.readings)} of {count}" if len(self.readings) < count else str(count)
        lines = [f"{at:%H:%M:%S.%f}"[:-3] + f" {head} batch {self.headers.id.n}: {number} readings"]
        return "\n".join([*lines, *(_reading(reading, self.domain) for reading in self.readings)])


def _reading(reading: Mapping[str, Any], domain: str) -> str:
    tags = " ".join(f"{name}={text}" for name, text in (reading.get("tags") or {}).items())
    value = reading.get("value")
    text = f"{reading.get('ts')} {reading.get('device', domain)} {reading.get('metric')}"
    return shown(f"  {text} = {json.dumps(value, ensure_ascii=False)}{' {' + tags + '}' if tags else ''}")


def filtered_batch(message: RawMessage, filter_: Filter) -> ShownBatch | None:
    """The message with the readings that pass; None if none does."""
    try:
        subject = parse_subject(message.subject)
    except ContractError:
        return None
    if subject.kind != "batch" or (filter_.inputs and subject.name not in filter_.inputs):
        return None
    try:
        headers = parse_batch_headers(message.headers)
        rows = [json.loads(line) for line in _unpacked(message.data, headers).splitlines()]
    except (ContractError, ValueError, zstandard.ZstdError) as error:
        return ShownBatch(message.seq, subject.cls, subject.name, None, problem=f"can't be read: {error}")
    kept = tuple(row for row in rows if isinstance(row, dict) and filter_.passes(row))
    if not kept:
        return None
    return ShownBatch(message.seq, subject.cls, subject.name, headers, kept, domain=subject.domain)


def _unpacked(data: bytes, headers: BatchHeaders) -> bytes:
    if not headers.compressed:
        return data
    unpacker = zstandard.ZstdDecompressor()
    return unpacker.stream_reader(data).read(MAX_UNPACKED_BYTES)


class Tap:
    """The stream of one class of a leaf. `incomplete` says that the last batches were sought in a part of it
    only. Everything raises `ApiError` or `UnavailableError`."""

    def __init__(self, js: JetStream, domain: str, cls: str, filter_: Filter) -> None:
        self._js, self._filter, self.stream = js, filter_, leaf_stream(domain, cls)
        input_name = next(iter(filter_.inputs)) if len(filter_.inputs) == 1 else ">"
        self._subject = batch_subject(domain, cls, input_name)
        self._after = self.scanned = 0
        self.incomplete = False

    async def last(self, most: int) -> list[ShownBatch]:
        """The last batches that pass, oldest first; `news` goes on behind them."""
        info = await self._js.stream_info(self.stream)
        self._after = info.last
        batches: list[ShownBatch] = []
        for seq in range(info.last, info.first - 1, -1):
            if len(batches) >= most:
                break
            if self.scanned >= _MAX_SCANNED:
                self.incomplete = True
                break
            self.scanned += 1
            message = await self._js.get_message(self.stream, seq=seq)
            passed = None if message is None else filtered_batch(message, self._filter)
            if passed is not None:
                batches.append(passed)
        return batches[::-1]

    async def news(self) -> list[ShownBatch]:
        """The batches that have come since and pass, some at a time. In a recreated stream it continues
        from the present end."""
        batches: list[ShownBatch] = []
        for _ in range(_AT_ONCE):
            message = await self._js.get_message(
                self.stream, seq=self._after + 1, next_by_subject=self._subject
            )
            if message is None:
                info = await self._js.stream_info(self.stream)
                self._after = min(self._after, info.last)
                break
            self._after = message.seq
            passed = filtered_batch(message, self._filter)
            if passed is not None:
                batches.append(passed)
        return batches
