"""Classifies a row of `bronze`, the first step of refine. Pure.

A row is a batch of readings or dead letters, a direct value, an agent record, or quarantined with a reason.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

import numpy as np
import zstandard

from agent.contract import (
    H_MQTT,
    H_VERSION,
    MAX_UNPACKED_BYTES,
    VERSION,
    BatchHeaders,
    Clock,
    ContractError,
    Correction,
    Subject,
    mqtt_text,
    parse_batch_headers,
    parse_correction,
    parse_ledger,
    parse_subject,
)
from hub_jobs.source.protocol import header, parse_headers

_WINDOW: Final = 64 * 1024**2
_NEWLINE: Final = ord("\n")
_OF_THREAD: Final = threading.local()
"""One decompressor per thread: costly to create, not shareable."""


class QuarantineReason(StrEnum):
    """The reason for quarantine."""

    SOURCE = "unknown source"
    SUBJECT = "bad subject"
    FOREIGN = "foreign subject"
    LEDGER = "bad ledger"
    CLOCK = "bad correction"
    VERSION = "unknown version"
    HEADERS = "bad headers"
    CORRUPT = "corrupt"
    TOO_LARGE = "too large"
    COUNT = "wrong count"
    LINE = "bad line"
    DIRECT = "bad message"
    DEAD = "dead letter"
    OTHER_CONTENT = "other content under a known id"
    THINNED = "payload was dropped"


class QuarantinedError(Exception):
    """The whole message goes to quarantine."""

    def __init__(self, reason: QuarantineReason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class BronzeMessage:
    """A row of bronze without content; times in microseconds since 1970."""

    stream: str
    created: str
    seq: int
    arrived: int
    domain: str | None
    cls: str | None
    run: str | None
    n: int | None
    count: int | None
    source_stream: str | None
    source_identity: str | None
    source_seq: int | None
    default_ts: int
    """The time of readings without one: the batch's seal or the message's arrival."""
    ts_source: str
    """The clock of `default_ts`: `agent` or `hub`."""
    clock: Clock | None = None
    """State of the agent's clock at the seal."""


class BatchText(NamedTuple):
    """Unpacked lines of a batch of readings, and their number."""

    text: bytes
    lines: int


class DeadLetters(NamedTuple):
    """Unpacked lines of dead letters."""

    text: bytes


class DirectValue(NamedTuple):
    """A device's message: an object or a bare value."""

    payload: bytes
    device: str
    metric: str


Content = BatchText | DeadLetters | DirectValue


def parse_message(row: dict[str, Any]) -> tuple[BronzeMessage, Content | None]:
    """Return a row's message and content, None for agent records. Raises `QuarantinedError`."""
    subject = _subject(row)
    match subject.kind:
        case "batch":
            headers, text = _unpacked(row, subject)
            return message_of(row, headers), BatchText(text, headers.count)
        case "dead":
            headers, text = _unpacked(row, subject)
            return message_of(row, headers), DeadLetters(text)
        case "direct":
            return message_of(row), _direct(row, subject)
        case "ledger":
            _check_ledger(row["payload"], subject)
        case "clock":
            correction_in(row["payload"], subject.domain)
    return message_of(row), None


def message_of(row: dict[str, Any], headers: BatchHeaders | None = None) -> BronzeMessage:
    """Return the row's message without content; `headers` are a batch's."""
    is_direct = row["n"] is None
    return BronzeMessage(
        stream=row["stream"],
        created=row["created"],
        seq=row["seq"],
        arrived=row["arrived"],
        domain=row["domain"],
        cls=row["class"],
        run=row["run"],
        n=row["n"],
        count=row["count"],
        source_stream=row["source_stream"] if is_direct else None,
        source_identity=row["source_identity"] if is_direct else None,
        source_seq=row["source_seq"] if is_direct else None,
        default_ts=row["arrived"] if headers is None else headers.sealed_at // 1000,
        ts_source="hub" if headers is None else "agent",
        clock=None if headers is None else headers.clock,
    )


def _subject(row: dict[str, Any]) -> Subject:
    if row["domain"] is None:
        raise QuarantinedError(
            QuarantineReason.SOURCE, "no source of the stream wrote it, so it is of no domain"
        )
    try:
        subject = parse_subject(row["subject"])
    except ContractError as error:
        raise QuarantinedError(QuarantineReason.SUBJECT, str(error)) from None
    if subject.domain != row["domain"]:
        raise QuarantinedError(
            QuarantineReason.FOREIGN, f"subject {row['subject']!r} came from domain {row['domain']!r}"
        )
    return subject


def _unpacked(row: dict[str, Any], subject: Subject) -> tuple[BatchHeaders, bytes]:
    given = {name: value.decode(errors="backslashreplace") for name, value in parse_headers(row["headers"])}
    headers = _headers(given)
    if headers.id.cls != subject.cls:
        raise QuarantinedError(
            QuarantineReason.HEADERS, f"message id {headers.id} names another class than {row['subject']}"
        )
    try:
        text = unpack(row["payload"], compressed=headers.compressed)
    except UnpackError as error:
        raise QuarantinedError(
            QuarantineReason.TOO_LARGE if error.too_large else QuarantineReason.CORRUPT,
            f"the payload {error}",
        ) from None
    lines = count_lines(text)
    if lines != headers.count:
        raise QuarantinedError(
            QuarantineReason.COUNT, f"says that it holds {headers.count} and holds {lines} lines"
        )
    return headers, text


def _headers(given: dict[str, str]) -> BatchHeaders:
    try:
        return parse_batch_headers(given)
    except ContractError as error:
        reason = (
            QuarantineReason.HEADERS if given.get(H_VERSION) == str(VERSION) else QuarantineReason.VERSION
        )
        raise QuarantinedError(reason, str(error)) from None


def _check_ledger(payload: bytes, subject: Subject) -> None:
    try:
        ledger = parse_ledger(payload)
    except ContractError as error:
        raise QuarantinedError(QuarantineReason.LEDGER, str(error)) from None
    if (ledger.domain, ledger.cls) != (subject.domain, subject.cls):
        raise QuarantinedError(
            QuarantineReason.LEDGER,
            f"ledger of {ledger.domain}, class {ledger.cls}, on the subject of another",
        )


def _direct(row: dict[str, Any], subject: Subject) -> DirectValue:
    """Return a direct message with device and metric in their MQTT spelling."""
    device, metric = subject.name, subject.metric
    if header(row["headers"], H_MQTT.encode()) is not None:
        device, metric = mqtt_text(device), mqtt_text(metric)
    return DirectValue(row["payload"], device, metric)


def correction_in(payload: bytes, domain: str) -> Correction:
    """Parse a clock correction of `domain`. Raises `QuarantinedError`."""
    try:
        correction = parse_correction(payload)
    except ContractError as error:
        raise QuarantinedError(QuarantineReason.CLOCK, str(error)) from None
    if correction.domain != domain:
        raise QuarantinedError(
            QuarantineReason.CLOCK, f"correction of {correction.domain} on the subject of {domain}"
        )
    return correction


class UnpackError(Exception):
    """A payload can't be unpacked; `too_large` above `MAX_UNPACKED_BYTES`."""

    def __init__(self, text: str, *, too_large: bool = False) -> None:
        super().__init__(text)
        self.too_large = too_large


def unpack(payload: bytes, *, compressed: bool, limit: int = MAX_UNPACKED_BYTES) -> bytes:
    """Return a batch's text of at most `limit` bytes; memory is bounded by it and zstd's window (64 MiB).
    Raises `UnpackError`.
    """
    if not compressed:
        if len(payload) > limit:
            raise UnpackError(f"holds {len(payload)} bytes, the most is {limit}", too_large=True)
        return payload
    try:
        return _decompressed(payload, limit)
    except zstandard.ZstdError as error:
        raise UnpackError(f"is not zstd: {error}") from None


def _decompressed(payload: bytes, limit: int) -> bytes:
    unpacker = _unpacker()
    size = zstandard.frame_content_size(payload)
    # A frame need not say its size. As a stream it can be read up to the limit, but one that was cut off
    # looks whole.
    if size > limit or (size < 0 and len(unpacker.stream_reader(payload).read(limit + 1)) > limit):
        raise UnpackError(f"unpacks to more than {limit} bytes", too_large=True)
    frame = unpacker.decompressobj()
    text = frame.decompress(payload)
    if not frame.eof or frame.unused_data:
        raise UnpackError("is not one whole frame of zstd")
    return text


def _unpacker() -> zstandard.ZstdDecompressor:
    if not hasattr(_OF_THREAD, "unpacker"):
        _OF_THREAD.unpacker = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
    unpacker: zstandard.ZstdDecompressor = _OF_THREAD.unpacker
    return unpacker


def count_lines(text: bytes) -> int:
    """Count lines; the last needs no newline."""
    # Four times as fast as bytes.count, which looks at one after the other.
    newlines = int(np.count_nonzero(np.frombuffer(text, np.uint8) == _NEWLINE))
    return newlines + (not text.endswith(b"\n") and text != b"")
