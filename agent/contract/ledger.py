"""Defines ledger records (an agent's account per class and run) and dead letters.

Dead letters travel on `tel.<domain>.<class>._dead.<input>` with batch headers, an `n` of the same series and
`Petiole-Count` letters as NDJSON. In the ledger their `n` is among those stored. The letters count as
accepted and dead, never as stored, also those beyond the limit, which are in no message.

A letter is `{"at": …, "reason": …, "text": …}`, with `base64` for non-UTF-8, `size` in bytes if cut, and
`omitted` for the number of letters since the one before that were counted and not kept.
"""

from __future__ import annotations

import base64
import json
from dataclasses import asdict, dataclass
from typing import Any, Final

from agent.contract.checks import (
    ContractError,
    check_class,
    check_domain,
    check_run,
    count_of,
    encoded,
    field_of,
    object_of,
    open_record,
    optional,
    ranges_of,
)
from agent.contract.ranges import Ranges
from agent.contract.receipt import Chain, parse_chain

__all__ = [
    "DOUBTS",
    "LATE",
    "LOST_STREAMS",
    "MAX_PLACE",
    "MAX_REASON",
    "MAX_RECEIVED",
    "Doubt",
    "Ledger",
    "Letter",
    "LostStream",
    "Previous",
    "Readings",
    "StreamState",
    "parse_ledger",
    "parse_letter",
]

LOST_STREAMS: Final = 16
DOUBTS: Final = 16


LATE: Final = "after acceptance"
"""Suffix of a range's reason when some readings were acknowledged as accepted."""


@dataclass(frozen=True, slots=True)
class Readings:
    """Cumulative readings of a class and run."""

    accepted: int = 0
    stored: int = 0
    refused: int = 0
    discarded: int = 0
    dead: int = 0
    refused_late: int = 0
    """Refused ones acknowledged as accepted; senders do not repeat them."""


def _readings(value: Any, what: str) -> Readings:
    row = object_of(value, f"{what}: readings")
    return Readings(*(count_of(row, name, what) for name in Readings.__slots__))


@dataclass(frozen=True, slots=True)
class StreamState:
    """A leaf stream's identity (`created`, RFC 3339) and retained sequences."""

    created: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class LostStream:
    """A lost leaf stream, or the part lost by a restore; the only count of lost direct messages."""

    created: str
    """Identifies the stream."""
    last: int
    """Its last known sequence."""
    kept: int | None = None
    """The restored store's end, None if all is lost."""
    at: int = 0
    """When the agent saw `last` in ns since 1970, 0 if unknown; separates restores of one backup."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """Uncertain lines of an input: `twice` maybe doubled, `lacks` maybe missing."""

    kind: str
    input: str
    where: str
    """The file, or `all files`."""
    reason: str
    """Continues the sentence after `where`."""
    at: int
    """Detection in ns since 1970."""

    @property
    def place(self) -> tuple[str, str, str]:
        """Identifies the place; later doubts replace earlier ones."""
        return self.kind, self.input, self.where

    def __str__(self) -> str:
        may = "may be twice" if self.kind == "twice" else "may lack"
        return f"lines of input {self.input!r} {may}: {self.where} {self.reason}"


DOUBT_KINDS: Final = ("twice", "lacks")


@dataclass(frozen=True, slots=True)
class Previous:
    """The previous run by the state file."""

    run: str
    n: int
    """Its last stored batch."""
    readings: Readings
    closed: bool
    """Whether a final record closed it."""


def parse_previous(value: Any) -> Previous:
    """Parse a `previous` object; raises `ContractError`."""
    row = object_of(value, "previous")
    return Previous(
        check_run(row.get("run")),
        count_of(row, "n", "previous"),
        _readings(row.get("readings"), "previous"),
        field_of(row, "closed", bool, "previous"),
    )


@dataclass(frozen=True, slots=True)
class Ledger:
    """The account of one class and run."""

    domain: str
    cls: str
    run: str
    n: int
    """Highest assigned number."""
    stored: Ranges
    readings: Readings
    stream: StreamState
    refused: tuple[tuple[int, int, str], ...] = ()
    """Ranges of refused numbered batches with reason."""
    discarded: tuple[tuple[int, int, int, str], ...] = ()
    """Batches removed before the hub was known to have them (upper bound), with readings and reason; also
    stored.
    """
    gone: tuple[tuple[int, int, int, str], ...] = ()
    """The same as sequences, with direct messages and reason."""
    previous: Previous | None = None
    final: bool = False
    """Whether it closes the run."""
    lost: tuple[LostStream, ...] = ()
    """Replaced streams or ends, oldest first, at most `LOST_STREAMS`."""
    doubts: tuple[Doubt, ...] = ()
    """Newest doubts of the class, oldest first, at most `DOUBTS`, including earlier runs'."""
    chain: Chain | None = None
    """What the record's signature says of the signing run's batches; None in an unsigned record."""

    def encode(self) -> bytes:
        row = asdict(self)
        row["class"] = row.pop("cls")
        return encoded(row)


def _stream_state(row: dict[str, Any]) -> StreamState:
    created = field_of(row, "created", str, "ledger")
    return StreamState(created, count_of(row, "first", "ledger"), count_of(row, "last", "ledger"))


def _lost_streams(row: dict[str, Any], what: str) -> tuple[LostStream, ...]:
    streams = []
    for item in field_of(row, "lost", list, what):
        lost = object_of(item, f"{what}: a stream in lost")
        kept = None if lost.get("kept") is None else count_of(lost, "kept", what)
        at = count_of(lost, "at", what)
        streams.append(
            LostStream(field_of(lost, "created", str, what), count_of(lost, "last", what), kept, at)
        )
    return tuple(streams)


def _doubts(row: dict[str, Any], what: str) -> tuple[Doubt, ...]:
    doubts = []
    for item in field_of(row, "doubts", list, what):
        doubt = object_of(item, f"{what}: a doubt")
        kind = field_of(doubt, "kind", str, what)
        if kind not in DOUBT_KINDS:
            raise ContractError(f"{what}: a doubt of kind {kind!r:.80}; known are {', '.join(DOUBT_KINDS)}")
        input_, where, reason = (
            field_of(doubt, name, str, what)[:MAX_PLACE] for name in ("input", "where", "reason")
        )
        doubts.append(Doubt(kind, input_, where, reason, count_of(doubt, "at", what)))
    return tuple(doubts)


def parse_ledger(data: bytes | str) -> Ledger:
    """Parse a record; raises `ContractError`."""
    what = "ledger"
    row = open_record(data, what)
    stream = _stream_state(field_of(row, "stream", dict, what))
    return Ledger(
        domain=check_domain(row.get("domain")),
        cls=check_class(row.get("class")),
        run=check_run(row.get("run")),
        n=count_of(row, "n", what),
        stored=ranges_of(row, "stored", (int, int), what),
        refused=ranges_of(row, "refused", (int, int, str), what),
        discarded=ranges_of(row, "discarded", (int, int, int, str), what),
        gone=ranges_of(row, "gone", (int, int, int, str), what) if "gone" in row else (),
        readings=_readings(row.get("readings"), what),
        stream=stream,
        previous=optional(row, "previous", parse_previous),
        final=field_of(row, "final", bool, what),
        lost=_lost_streams(row, what) if "lost" in row else (),
        doubts=_doubts(row, what) if "doubts" in row else (),
        chain=optional(row, "chain", parse_chain),
    )


MAX_RECEIVED: Final = 8 * 1024
"""Kept bytes of a letter."""
MAX_PLACE: Final = 512
MAX_REASON: Final = 500
_CUT: Final = "…"
_WHAT: Final = "dead letter"


@dataclass(frozen=True, slots=True)
class Letter:
    """Refused data with place (file and byte, topic, sender) and `reason`. `size` in bytes if cut,
    else None.
    """

    received: bytes
    at: str
    reason: str
    size: int | None = None
    omitted: int = 0

    def encode(self) -> bytes:
        """Return a JSON line within limits, without newline."""
        kept, text = _kept(self.received, cut=self.size is not None)
        row: dict[str, object] = {"at": _short(self.at, MAX_PLACE), "reason": _short(self.reason, MAX_REASON)}
        if text is None:
            row["base64"] = base64.b64encode(kept).decode()
        else:
            row["text"] = text
        if self.size is not None or len(kept) < len(self.received):
            row["size"] = max(self.size or 0, len(self.received))
        if self.omitted:
            row["omitted"] = self.omitted
        return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def parse_letter(line: bytes | str) -> Letter:
    """Parse a letter, ignoring unknown fields. Raises `ContractError`."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ContractError(f"{_WHAT}: not JSON: {error}") from None
    if not isinstance(row, dict):
        raise ContractError(f"{_WHAT}: an object was expected, not {type(row).__name__}")
    return Letter(
        _received(row),
        field_of(row, "at", str, _WHAT),
        field_of(row, "reason", str, _WHAT),
        count_of(row, "size", _WHAT) if "size" in row else None,
        count_of(row, "omitted", _WHAT) if "omitted" in row else 0,
    )


def _received(row: dict[str, Any]) -> bytes:
    if "base64" not in row:
        text: str = field_of(row, "text", str, _WHAT)
        return text.encode(errors="replace")
    try:
        return base64.b64decode(field_of(row, "base64", str, _WHAT), validate=True)
    except ValueError as error:
        raise ContractError(f"{_WHAT}: base64 cannot be read: {error}") from None


def _kept(received: bytes, *, cut: bool) -> tuple[bytes, str | None]:
    """Return kept bytes, and as text if UTF-8, without splitting characters."""
    kept = received[:MAX_RECEIVED]
    try:
        return kept, kept.decode()
    except UnicodeDecodeError as error:
        broken = error.reason == "unexpected end of data" and (cut or len(kept) < len(received))
        if not broken:
            return kept, None
        return kept[: error.start], kept[: error.start].decode()


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + _CUT
