"""What a row of `bronze` is: readings, something that is none, or something that can't be taken, with the
reason. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from agent.contract import (
    H_MQTT,
    H_VERSION,
    VERSION,
    BatchHeaders,
    Clock,
    ContractError,
    Correction,
    Letter,
    Subject,
    mqtt_text,
    parse_batch_headers,
    parse_correction,
    parse_ledger,
    parse_letter,
    parse_reading,
    parse_subject,
)
from hub_jobs.refine.lines import (
    FAULTS,
    NO_TAGS,
    BadLine,
    Name,
    ReadingLine,
    Slice,
    Text,
    UnpackError,
    Whole,
    count_lines,
    decode,
    unpack,
)
from hub_jobs.source.wire import header, parse_headers


class QuarantineReason(StrEnum):
    """Why something is in quarantine."""

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
    """A whole message that can't be taken."""

    def __init__(self, reason: QuarantineReason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class BronzeMessage:
    """A row of bronze; times are in microseconds since 1970. `default_ts` and `ts_source` are for readings
    that have no time of their own; `clock` is that of a batch when it was sealed, at `default_ts`."""

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
    ts_source: str
    clock: Clock | None = None


class _Direct(Struct, gc=False, forbid_unknown_fields=True):
    """A direct message that is an object; its subject says device and metric, so it need not."""

    value: float | Whole | Text | bool
    metric: Name | UnsetType = UNSET
    ts: str | float | int | UnsetType = UNSET
    device: Name | UnsetType = UNSET
    tags: Raw = NO_TAGS


_OBJECT: Final = msgspec.json.Decoder(_Direct)
_SCALAR: Final = msgspec.json.Decoder(float | Annotated[int, Meta()] | str | bool)
_ANY: Final = msgspec.json.Decoder(dict[str, Any])


def slices(row: dict[str, Any]) -> tuple[BronzeMessage, Iterator[Slice]]:
    """The readings of a row of bronze; none for a record of the agent. Raises `QuarantinedError`."""
    subject = _subject(row)
    match subject.kind:
        case "batch":
            headers, text = _unpacked(row, subject)
            return message_of(row, headers), decode(text)
        case "dead":
            headers, text = _unpacked(row, subject)
            return message_of(row, headers), iter([_letters(text)])
        case "direct":
            return message_of(row), iter([_direct(row["payload"], _device_words(row, subject))])
        case "ledger":
            _check_ledger(row["payload"], subject)
        case "clock":
            correction_in(row["payload"], subject.domain)
    return message_of(row), iter(())


def message_of(row: dict[str, Any], headers: BatchHeaders | None = None) -> BronzeMessage:
    """The row without its content; `headers` are those of a batch."""
    names = ("stream", "created", "seq", "arrived", "domain", "run", "n", "count")
    source = {name: row[name] for name in ("source_stream", "source_identity", "source_seq")}
    return BronzeMessage(
        **{name: row[name] for name in names},
        cls=row["class"],
        **(source if row["n"] is None else dict.fromkeys(source)),
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
    """The headers and lines of a batch, of readings or dead letters."""
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


def _letters(text: bytes) -> Slice:
    """Dead letters, none of which is a reading."""
    found = Slice(0, text, [])
    for number, line in enumerate(text.removesuffix(b"\n").split(b"\n") if text else ()):
        try:
            letter = parse_letter(line)
        except ContractError as error:
            found.bad.append(BadLine(number, line, str(error)))
        else:
            found.bad.append(BadLine(number, letter.received, _why(letter), letter.at))
    return found


def _why(letter: Letter) -> str:
    omitted = f" (after {letter.omitted} that were counted only)" if letter.omitted else ""
    return f"{letter.reason}{omitted}"


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


def _device_words(row: dict[str, Any], subject: Subject) -> Subject:
    """The subject with device and metric as an MQTT device wrote them."""
    if header(row["headers"], H_MQTT.encode()) is None:
        return subject
    return replace(subject, name=mqtt_text(subject.name), metric=mqtt_text(subject.metric))


def correction_in(payload: bytes, domain: str) -> Correction:
    """A correction of the clock of `domain`. Raises `QuarantinedError`."""
    try:
        correction = parse_correction(payload)
    except ContractError as error:
        raise QuarantinedError(QuarantineReason.CLOCK, str(error)) from None
    if correction.domain != domain:
        raise QuarantinedError(
            QuarantineReason.CLOCK, f"correction of {correction.domain} on the subject of {domain}"
        )
    return correction


def _direct(payload: bytes, subject: Subject) -> Slice:
    """A reading as an object or a bare value. Where an object names device or metric, they are the
    subject's."""
    found = Slice(0, payload, [])
    try:
        found.rows.append(_direct_line(payload, subject))
    except ContractError as error:
        found.bad.append(BadLine(0, payload, str(error)))
    return found


def _direct_line(payload: bytes, subject: Subject) -> ReadingLine:
    if not payload.lstrip().startswith(b"{"):
        return ReadingLine(subject.metric, _scalar(payload, subject), device=subject.name)
    try:
        one = _OBJECT.decode(payload)
    except FAULTS:
        one = _checked(payload, subject)
    for what, given, due in (("device", one.device, subject.name), ("metric", one.metric, subject.metric)):
        if given not in (UNSET, due):
            raise ContractError(f"the message names the {what} {given!r:.80}, its subject {due!r:.80}")
    return ReadingLine(subject.metric, one.value, one.ts, subject.name, one.tags)


def _scalar(payload: bytes, subject: Subject) -> float | int | str | bool:
    try:
        value = _SCALAR.decode(payload)
    except FAULTS as error:
        raise ContractError(f"neither a reading nor a bare value in JSON: {error}") from None
    return parse_reading(msgspec.json.encode({"metric": subject.metric, "value": value})).value


def _checked(payload: bytes, subject: Subject) -> _Direct:
    """The message as the reference reads it, with the metric of its subject put in. Raises
    `ContractError`."""
    try:
        given = _ANY.decode(payload)
    except FAULTS as error:
        raise ContractError(f"not a JSON object: {error}") from None
    reading = parse_reading(msgspec.json.encode({"metric": subject.metric, **given}))
    return _Direct(
        reading.value,
        reading.metric,
        UNSET if reading.ts is None else reading.ts,
        UNSET if reading.device is None else reading.device,
        Raw(msgspec.json.encode(dict(reading.tags))),
    )
