"""Implements `petiole tap`, which shows batches of this leaf's stream with the agent's key, without a
consumer.

Exit codes: 0 well; 2 wrong usage; 5 the local server does not answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final

import typer
import zstandard

from agent.base.logs import shown
from agent.base.terminal import closed_pipe
from agent.cli.configuration import ConfigFile, account_key, configuration, end, end_unreachable
from agent.cli.query import own_server
from agent.config import Config
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
from agent.jetstream.connection import EXPECTED

_MAX_LAST: Final = 1_000

InputNames = Annotated[list[str] | None, typer.Option("--input", help="Only batches of this input.")]
Classes = Annotated[list[str] | None, typer.Option("--class", help="Only this class. Default: all.")]
Devices = Annotated[list[str] | None, typer.Option("--device", help="Only this device; * and ? fit any.")]
MetricNames = Annotated[list[str] | None, typer.Option("--metric", help="Only this metric; * and ? fit any.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")]
Last = Annotated[int, typer.Option("--last", "-n", min=0, max=_MAX_LAST, help="Batches from before.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object a batch.")]


def command(
    config: ConfigFile,
    inputs: InputNames = None,
    classes: Classes = None,
    devices: Devices = None,
    metrics: MetricNames = None,
    follow: Follow = False,
    last: Last = 10,
    as_json: AsJson = False,
) -> None:
    """Show the last batches that this leaf has stored, and with --follow those that come."""
    settings = configuration(config)
    names = settings.class_names
    if settings.role != "leaf":
        end(["tap is for a leaf, which has the batches"])
    if unknown := sorted(set(classes or ()) - set(names)):
        end([f"--class {name}: there is no such class; it has {', '.join(names)}" for name in unknown])
    account_key(settings)
    filter_ = Filter(frozenset(inputs or ()), tuple(devices or ()), tuple(metrics or ()))
    show = _printer(as_json)
    try:
        asyncio.run(_run(settings, classes or names, filter_, last, follow, show))
    except BrokenPipeError:
        closed_pipe()
    except EXPECTED as error:
        end_unreachable(settings, error)


def _printer(as_json: bool) -> Callable[[ShownBatch], None]:
    def show(batch: ShownBatch) -> None:
        sys.stdout.write((batch.as_json() if as_json else batch.as_text()) + "\n")
        sys.stdout.flush()

    return show


async def _run(
    settings: Config,
    classes: list[str],
    filter_: Filter,
    last: int,
    follow: bool,
    show: Callable[[ShownBatch], None],
) -> None:
    work = asyncio.current_task()
    assert work is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, work.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        async with own_server(settings) as link:
            taps = [Tap(JetStream(link.nc), settings.domain, cls, filter_) for cls in classes]
            await _print_last(taps, last, show)
            while follow:
                passed = [batch for tap in taps for batch in await tap.news()]
                for batch in passed:
                    show(batch)
                if not passed:
                    await asyncio.sleep(POLL_SECONDS)


async def _print_last(taps: list[Tap], last: int, show: Callable[[ShownBatch], None]) -> None:
    batches = [batch for tap in taps for batch in await tap.last(last)]
    batches.sort(key=lambda batch: batch.headers.sealed_at if batch.headers else 0)
    for batch in batches[max(0, len(batches) - last) :]:
        show(batch)
    for tap in taps:
        if tap.incomplete:
            typer.echo(
                f"petiole: only the last {tap.scanned} messages of {tap.stream} were looked at", err=True
            )


POLL_SECONDS: Final = 0.25
_MAX_SCANNED: Final = 2_000
"""Most messages searched for the last matches."""
_AT_ONCE: Final = 100


@dataclass(frozen=True, slots=True)
class Filter:
    """Selects inputs, and devices and metrics by glob; empty for all."""

    inputs: frozenset[str] = frozenset()
    devices: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()

    def passes(self, reading: Mapping[str, Any]) -> bool:
        return _fits(reading.get("device"), self.devices) and _fits(reading.get("metric"), self.metrics)


def _fits(name: object, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatchcase(str(name), pattern) for pattern in patterns)


@dataclass(frozen=True, slots=True)
class ShownBatch:
    """A batch at `seq` with matching readings; `problem` if unreadable."""

    seq: int
    cls: str
    input: str
    headers: BatchHeaders | None
    readings: tuple[Mapping[str, Any], ...] = ()
    problem: str | None = None
    domain: str = ""
    """Default device."""

    def as_json(self) -> str:
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
        """Return lines safe for a terminal."""
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
    """Return a message's matching readings, or None."""
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
    """A class's stream. `incomplete` if only a part was searched. Methods raise `ApiError` or
    `UnavailableError`.
    """

    def __init__(self, js: JetStream, domain: str, cls: str, filter_: Filter) -> None:
        self._js, self._filter, self.stream = js, filter_, leaf_stream(domain, cls)
        input_name = next(iter(filter_.inputs)) if len(filter_.inputs) == 1 else ">"
        self._subject = batch_subject(domain, cls, input_name)
        self._after = self.scanned = 0
        self.incomplete = False

    async def last(self, most: int) -> list[ShownBatch]:
        """Return the last matches, oldest first; `news` continues."""
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
        """Return new matches in portions; in a recreated stream from its present end."""
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
