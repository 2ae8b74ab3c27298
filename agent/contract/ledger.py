"""The ledger: what an agent accepted and what became of it, per class and run; and the dead letters: what an
input received and could not take, when there was no sender to whom it could be refused.

Dead letters travel like readings: one message on `tel.<domain>.<class>._dead.<input>` has the headers of a
batch, an `n` of the same series and NDJSON of `Petiole-Count` letters. In the ledger its `n` is among those
stored, its letters are counted as accepted and dead, never as stored; so are letters beyond the limit of what
is kept, which are in no message.

A letter is `{"at": …, "reason": …, "text": …}`, or with `base64` instead of `text` where what was received is
not UTF-8. `size` is there when only the beginning of what was received is: how many bytes it had. `omitted`
says how many letters of this input and class since the letter before were counted only."""

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
"""Ends the reason of a range that was refused although some of it had been acknowledged as accepted."""


@dataclass(frozen=True, slots=True)
class Readings:
    """Cumulative counts of readings of one class and run."""

    accepted: int = 0
    stored: int = 0
    refused: int = 0
    discarded: int = 0
    dead: int = 0
    refused_late: int = 0
    """How many of the `refused` had been acknowledged as accepted: their senders do not send them again."""


def _readings(value: Any, what: str) -> Readings:
    row = object_of(value, f"{what}: readings")
    return Readings(*(count_of(row, name, what) for name in Readings.__slots__))


@dataclass(frozen=True, slots=True)
class StreamState:
    """A leaf stream's identity (`created`, RFC 3339 as its server wrote it) and its retained sequences."""

    created: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class LostStream:
    """A leaf stream whose store was lost, or the part of one that a restore from a backup lost. What devices
    published there themselves is counted nowhere else."""

    created: str
    """Identifies the stream."""
    last: int
    """The last sequence that the agent knows it to have held."""
    kept: int | None = None
    """The sequence up to which the restored store held all, None if the whole store was lost."""
    at: int = 0
    """When the agent saw `last`, in nanoseconds since 1970, 0 if unknown. It distinguishes two restores of
    one backup, which may agree in all else."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """Lines of an input that can't be told: `twice` may be stored twice, `lacks` may be missing."""

    kind: str
    input: str
    where: str
    """The file, or `all files`."""
    reason: str
    """Continues the sentence that begins with `where`."""
    at: int
    """When it was found, in nanoseconds since 1970."""

    @property
    def place(self) -> tuple[str, str, str]:
        """What is named; a later doubt of the same place takes the place of an earlier one."""
        return self.kind, self.input, self.where

    def __str__(self) -> str:
        may = "may be twice" if self.kind == "twice" else "may lack"
        return f"lines of input {self.input!r} {may}: {self.where} {self.reason}"


DOUBT_KINDS: Final = ("twice", "lacks")


@dataclass(frozen=True, slots=True)
class Previous:
    """The run before, from the state file."""

    run: str
    n: int
    """Its last stored batch."""
    readings: Readings
    closed: bool
    """Whether a final ledger record closed it."""


def parse_previous(value: Any) -> Previous:
    """Read a `previous` object; raises `ContractError`."""
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
    """The highest batch number assigned."""
    stored: Ranges
    readings: Readings
    stream: StreamState
    refused: tuple[tuple[int, int, str], ...] = ()
    """Batches that were refused after they had a number, each range with the reason."""
    discarded: tuple[tuple[int, int, int, str], ...] = ()
    """Batches that left the stream before the leaf knew that the hub had them (too many perhaps, never too
    few), each range with its readings and the reason. They count as stored too."""
    gone: tuple[tuple[int, int, int, str], ...] = ()
    """The sequences of the stream that left it so, each range with its direct messages and the reason."""
    previous: Previous | None = None
    final: bool = False
    """Whether this record closes the run."""
    lost: tuple[LostStream, ...] = ()
    """The streams, or ends of streams, that this one replaces, oldest first, at most `LOST_STREAMS`."""
    doubts: tuple[Doubt, ...] = ()
    """The newest doubts of the class, oldest first, at most `DOUBTS`. Those of earlier runs are repeated."""

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
    """Read a ledger record; raises `ContractError`."""
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
    )


MAX_RECEIVED: Final = 8 * 1024
"""Bytes that are kept of what was received."""
MAX_PLACE: Final = 512
MAX_REASON: Final = 500
_CUT: Final = "…"
_WHAT: Final = "dead letter"


@dataclass(frozen=True, slots=True)
class Letter:
    """Something `received` that could not be taken: where it stood (a file and the byte, a topic, a sender),
    and the `reason` in words. `size` is how many bytes it had, None where `received` is all of it."""

    received: bytes
    at: str
    reason: str
    size: int | None = None
    omitted: int = 0

    def encode(self) -> bytes:
        """The letter as one JSON line, without the newline, cut to the bounds of this module."""
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
    """Read a letter; fields that are not known are ignored. Raises `ContractError`."""
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
        count_of(row, "omitted", _WHAT, absent=0),
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
    """What is kept, and the same as text where it is text; a character is not cut in two."""
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
