"""Defines leaves' records and admission of announcements. Pure.

Records are backed up with the streams, so a restore has both at one moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from agent.contract import VERSION, Announce, Checkpoint, ClassState, ContractError, leaf_stream

COPIED: Final = (
    "domain {domain!r} is announced by two machines that take turns and have one machine id, {machine}: one "
    "is a copy of the other's disk; stop the copy, empty its state_dir and its server's store, and give it a "
    "domain and a key of its own"
)

REVOKED: Final = (
    "{domain!r} is revoked: its link is cut, and what it sent stays; let it in again with a new key "
    "(`petiole fleet replace {domain}`), or forget it (`petiole fleet forget {domain}`)"
)

RECREATED: Final = "{} was recreated"
CONTRADICTED: Final = "{} holds other messages than the hub's records say"
MOVED: Final = "its leaf is in another cell of the hub now"
POWER_CUT: Final = "the hub's machine was restarted, and its server does not sync each message"

_MISSED: Final = 3
SLOWEST: Final = 60.0
"""Seconds between announcements of profile `thin`."""

MOST_MADE: Final = 16
"""Recreations of a class's stream, limited by metadata of 128 KiB (`JSMaxMetadataLen`)."""
MADE_OFTEN: Final = (
    "the server of {domain!r} created the stream of class {cls!r} anew over its messages more than {most} "
    "times: its disk loses files; replace the disk, forget the leaf (`petiole fleet forget {domain}`) and "
    "add it again"
)

FRESH: Final = 60.0
"""Seconds for which a heard machine owns its domain."""

_Record = TypeVar("_Record", "LeafRecord", "PurgeMarker")


class HubPosition(Struct, frozen=True):
    """The hub's position in an epoch."""

    seq: int
    """Highest leaf sequence."""
    message_id: str
    """Its id, "" if unseen."""
    hub_seq: int
    """Its hub sequence, 0 if unseen."""
    last: int
    """The aggregate's end then."""


class ClassRecord(Struct, frozen=True):
    """A class: link, streams and shared knowledge."""

    epoch: str
    created: str
    """Leaf stream identity."""
    stream: str
    """The aggregate."""
    stream_created: str
    """Aggregate identity."""
    held: HubPosition | None = None
    checkpoint: Checkpoint | None = None
    """Newest common checkpoint."""
    since: int = 0
    """Aggregate's end before this epoch."""
    unsure: bool = False
    """Whether messages may have been purged unseen."""
    lost: str = ""
    """Why the epoch is unreliable and must be replaced."""
    proposed: Checkpoint | None = None
    """Last agreed checkpoint, for a restored hub."""
    cut: int | None = None
    """Aggregate sequence above which nothing was agreed before this record: its end when it was restored
    without its record, 0 for a new record; None otherwise.
    """
    boot: str = ""
    """Page cache of this epoch (`Durability.boot`)."""
    rests: str = ""
    """Server that dropped its idle source, or ""."""

    before: str = ""
    """The aggregate of another cell that the class was in before; "" if it was in none."""

    @property
    def known_to(self) -> int:
        """Aggregate sequence up to which this epoch is known."""
        return self.held.last if self.held else self.since


class AggregateRef(Struct, frozen=True):
    """An aggregate's name, creation and end."""

    stream: str
    created: str
    last: int


class LeafRecord(Struct, frozen=True):
    """An announced leaf."""

    domain: str
    machine: str
    run: str
    versions: dict[str, str]
    announced_at: str
    """RFC 3339, hub clock, for people."""
    classes: dict[str, ClassRecord]
    said: dict[str, ClassState] = {}
    """Announced streams for the audit (`agent.contract.parse_fleet_record`); dropped classes stay while
    incomplete.
    """
    every: float | None = None
    """Announced interval in seconds, or None."""
    states: dict[str, str] = {}
    """Announced faults (`Announce.states`)."""
    made: dict[str, dict[str, str]] = {}
    """By class: times when the server recreated the stream over its messages, each with its first creation.
    """
    v: int = VERSION

    @property
    def silent_after(self) -> float:
        """Seconds for three missed announcements."""
        return _MISSED * (self.every or SLOWEST)


class PurgeMarker(Struct, frozen=True):
    """All stored records knew their position up to aggregate sequence `last`."""

    stream: str
    created: str
    last: int
    v: int = VERSION


_DECODER = msgspec.json.Decoder(LeafRecord)
_NOTED = msgspec.json.Decoder(PurgeMarker)


def encode(record: LeafRecord | PurgeMarker) -> bytes:
    return msgspec.json.encode(record)


def decode_leaf(data: bytes) -> LeafRecord:
    """Parse a leaf's record; raises `ContractError`."""
    return _decoded(_DECODER, data)


def decode_noted(data: bytes) -> PurgeMarker:
    """Parse a purge mark; raises `ContractError`."""
    return _decoded(_NOTED, data)


def _decoded(decoder: msgspec.json.Decoder[_Record], data: bytes) -> _Record:
    try:
        record = decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ContractError(f"fleet record: {error}") from None
    if record.v != VERSION:
        raise ContractError(f"fleet record: version {record.v} is not known here; this side speaks {VERSION}")
    return record


def refusal(
    announce: Announce, classes: Iterable[str] | None, known: LeafRecord | None, heard_ago: float
) -> str | None:
    """Return why an announcement is refused, or None. `classes` None if unconfigured; `heard_ago` of the
    known machine.
    """
    domain = announce.domain
    if classes is None:
        return (
            f"domain {domain!r} is not among the leaves in the hub's configuration; "
            f"add it there with the public key of its link"
        )
    if known is not None and known.machine != announce.machine and heard_ago < FRESH:
        return (
            f"domain {domain!r} belongs to machine {known.machine}, heard less than {FRESH:.0f} s ago, and "
            f"this is {announce.machine}; a domain is one machine's: give this one another domain, or stop "
            f"the other and wait"
        )
    refused = refused_classes(announce, classes, known)
    return next(iter(refused.values())) if refused.keys() == announce.classes.keys() and refused else None


def refused_classes(announce: Announce, classes: Iterable[str], known: LeafRecord | None) -> dict[str, str]:
    """Return refusals by class; others are admitted."""
    often = {
        cls: MADE_OFTEN.format(domain=announce.domain, cls=cls, most=MOST_MADE)
        for cls, made in _made(announce, known).items()
        if len(made) > MOST_MADE
    }
    return often | {
        cls: (
            f"class {cls!r} of {announce.domain!r} is not in the hub's configuration; "
            "add it to the classes of that leaf there"
        )
        for cls in sorted(set(announce.classes) - set(classes))
    }


def _made(announce: Announce, known: LeafRecord | None) -> dict[str, dict[str, str]]:
    """Return recreation times with the announced ones."""
    found = {} if known is None else dict(known.made)
    for cls, state in announce.classes.items():
        if state.made:
            found[cls] = {**found.get(cls, {}), state.made: state.created}
    return found


def admitted(
    announce: Announce,
    known: LeafRecord | None,
    places: Mapping[str, AggregateRef],
    now: str,
    boot: str = "",
) -> LeafRecord:
    """Return an admitted leaf's record; `places` are aggregates by class.

    Positions stay only for equal epoch and streams, since sequences of another stream mean other messages. An
    epoch is lost in three cases: a stream was recreated under it; it is acknowledged but new to the records,
    which were restored from before it; or it began under another `boot`, since its source may have continued
    after messages that a power cut took.
    """
    records = {}
    for cls, state in announce.classes.items():
        place = places[cls]
        record = ClassRecord(
            state.epoch, state.created, place.stream, place.created, since=place.last, boot=boot
        )
        old = known.classes.get(cls) if known else None
        if old is not None and _same_link(old, record):
            cut = old.boot != boot and not old.lost
            record = msgspec.structs.replace(old, lost=POWER_CUT) if cut else old
        else:
            checkpoint = announce.checkpoint.get(cls)
            record = _begun(record, old, checkpoint, state.acked, leaf_stream(announce.domain, cls))
        records[cls] = record
    return LeafRecord(
        announce.domain,
        announce.machine,
        announce.run,
        dict(announce.versions),
        now,
        records,
        {**_left_behind(known), **announce.classes},
        announce.every,
        dict(announce.states),
        _made(announce, known),
    )


def _left_behind(known: LeafRecord | None) -> dict[str, ClassState]:
    """Return announcements of dropped classes with missing messages."""
    if known is None:
        return {}

    def held(cls: str) -> int:
        record = known.classes.get(cls)
        return record.held.seq if record is not None and record.held is not None else 0

    return {cls: state for cls, state in known.said.items() if state.last > held(cls)}


def _begun(
    record: ClassRecord, old: ClassRecord | None, announced: Checkpoint | None, acked: int, stream: str
) -> ClassRecord:
    """Return a link's first record; `stream` is the leaf's. An `announced` checkpoint is looked up."""
    same = old is not None and old.stream_created == record.stream_created
    lost = ""
    if old is not None and old.epoch == record.epoch:
        lost = RECREATED.format(stream if same else record.stream)
    elif acked and announced is None:
        lost = f"up to {acked} is acknowledged of an epoch that the hub's records do not know"
    elif _begun_before_boot(record, old, known=acked > 0 or announced is not None):
        lost = POWER_CUT
    before = "" if old is None else old.before if old.stream == record.stream else old.stream
    if old is None or not same:
        return msgspec.structs.replace(record, lost=lost, cut=0, before=before)
    return msgspec.structs.replace(
        record, lost=lost, checkpoint=old.checkpoint, proposed=old.proposed, cut=old.cut, before=before
    )


def _begun_before_boot(record: ClassRecord, old: ClassRecord | None, *, known: bool) -> bool:
    """Tell whether a link may begin after messages that a power cut took: its leaf chose the start by an
    answer of another boot. A lost epoch gives no such answer.

    Without an old record a link counts as such if both sides had agreed (`known`).
    """
    if old is None:
        return record.boot != "" and known
    return old.created == record.created and old.boot != record.boot and not old.lost


def new_epochs(leaf: LeafRecord, known: LeafRecord | None) -> list[str]:
    """Return classes with a changed link."""
    before = known.classes if known else {}
    return [
        cls for cls, record in leaf.classes.items() if cls not in before or before[cls].epoch != record.epoch
    ]


def _same_link(record: ClassRecord, other: ClassRecord) -> bool:
    return (record.epoch, record.created, record.stream, record.stream_created) == (
        other.epoch,
        other.created,
        other.stream,
        other.stream_created,
    )
