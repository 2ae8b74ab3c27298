"""The registrar's records of leaves, and which announcements it accepts. Pure: no clock, no connection.

A record outlives the hub's server and is backed up with its streams, so that after a restore both are of the
same moment.
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
"""Seconds between the announcements of a leaf with the profile `thin`."""

MOST_MADE: Final = 16
"""How often the server of a leaf may create the stream of a class anew over its messages. The aggregate's
metadata hold each time, of which nats-server takes 128 KiB (`JSMaxMetadataLen`)."""
MADE_OFTEN: Final = (
    "the server of {domain!r} created the stream of class {cls!r} anew over its messages more than {most} "
    "times: its disk loses files; replace the disk, forget the leaf (`petiole fleet forget {domain}`) and "
    "add it again"
)

FRESH: Final = 60.0
"""Seconds for which a machine that was heard owns its domain."""

_Record = TypeVar("_Record", "LeafRecord", "PurgeMarker")


class HubPosition(Struct, frozen=True):
    """How far the hub held the messages of an epoch."""

    seq: int
    """The highest leaf sequence."""
    message_id: str
    """The id of the message there, "" if it was not seen."""
    hub_seq: int
    """The hub sequence of that message, 0 if it was not seen."""
    last: int
    """The aggregate's last sequence then."""


class ClassRecord(Struct, frozen=True):
    """One class of a leaf: its link, the streams on both sides, and what both sides know of each other."""

    epoch: str
    created: str
    """The identity of the leaf's stream."""
    stream: str
    """The aggregate."""
    stream_created: str
    """The identity of the aggregate."""
    held: HubPosition | None = None
    checkpoint: Checkpoint | None = None
    """The newest checkpoint that both sides know."""
    since: int = 0
    """The aggregate's last sequence when it was known to hold nothing of this epoch."""
    unsure: bool = False
    """Whether messages of this epoch may have been purged unseen."""
    lost: str = ""
    """Why the messages of this epoch cannot be relied on, so that the leaf has to begin another one."""
    proposed: Checkpoint | None = None
    """The checkpoint of the newest answer in which both sides agreed; a restored hub falls back to it, as the
    record is restored too."""
    cut: int | None = None
    """Above this sequence the aggregate holds nothing on which both sides agreed before this record: it ended
    there when it was restored without its record, or the record is new to it. None otherwise."""
    boot: str = ""
    """Identifies the page cache through which this epoch came (`Durability.boot`)."""
    rests: str = ""
    """The identity of the hub's server that had dropped its source, for the class is idle; "" if it had
    not."""

    before: str = ""
    """The aggregate of another cell that the class was in before; "" if it was in none."""

    @property
    def known_to(self) -> int:
        """Up to which sequence of the aggregate it is known what of this epoch is in it."""
        return self.held.last if self.held else self.since


class AggregateRef(Struct, frozen=True):
    """The aggregate of a class: its name, when it was made and its last sequence."""

    stream: str
    created: str
    last: int


class LeafRecord(Struct, frozen=True):
    """A leaf as it announced itself."""

    domain: str
    machine: str
    run: str
    versions: dict[str, str]
    announced_at: str
    """RFC 3339 by the hub's clock, for people only."""
    classes: dict[str, ClassRecord]
    said: dict[str, ClassState] = {}
    """Its streams as it announced them, for the audit (`agent.contract.parse_fleet_record`). A class that it
    announces no more stays here while the hub lacks messages of it."""
    every: float | None = None
    """Seconds between its announcements, None where it does not say."""
    states: dict[str, str] = {}
    """What is wrong with it, as it announced (`Announce.states`)."""
    made: dict[str, dict[str, str]] = {}
    """By class, when its server created the stream anew over its messages, and when it was created first."""
    v: int = VERSION

    @property
    def silent_after(self) -> float:
        """Seconds without an announcement after which its agent counts as silent: three were missed."""
        return _MISSED * (self.every or SLOWEST)


class PurgeMarker(Struct, frozen=True):
    """All stored records of an aggregate knew what of their leaf it held up to its sequence `last`."""

    stream: str
    created: str
    last: int
    v: int = VERSION


_DECODER = msgspec.json.Decoder(LeafRecord)
_NOTED = msgspec.json.Decoder(PurgeMarker)


def encode(record: LeafRecord | PurgeMarker) -> bytes:
    return msgspec.json.encode(record)


def decode_leaf(data: bytes) -> LeafRecord:
    """Read the record of a leaf back; raises `ContractError`."""
    return _decoded(_DECODER, data)


def decode_noted(data: bytes) -> PurgeMarker:
    """Read what was noted of an aggregate back; raises `ContractError`."""
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
    """Why an announcement is not taken in, None when it is. `classes` are those configured for the domain,
    None where the domain is not; `heard_ago` is how many seconds ago the known machine was heard."""
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
    """Why classes of a leaf are not taken in, by class; the others are."""
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
    """When the streams of a leaf were created anew, with what it announces."""
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
    """The record of a leaf that was taken in; `places` gives the aggregate of each class. What the hub held
    is kept only for the same epoch, leaf stream and aggregate: sequences of another one mean other messages.
    An epoch is lost under which one of the two streams was recreated, or which is new to the records though
    the hub has acknowledged messages of it: they were restored from before the epoch, and so was the
    aggregate. So is one that came through another page cache than that of this `boot`: its source may have
    gone on behind what a power cut took; and one that was begun before that and is announced after it."""
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
    """What was announced of the classes of which the hub lacks messages: of one that its leaf's configuration
    has no more nothing else says so at the hub."""
    if known is None:
        return {}

    def held(cls: str) -> int:
        record = known.classes.get(cls)
        return record.held.seq if record is not None and record.held is not None else 0

    return {cls: state for cls, state in known.said.items() if state.last > held(cls)}


def _begun(
    record: ClassRecord, old: ClassRecord | None, announced: Checkpoint | None, acked: int, stream: str
) -> ClassRecord:
    """The first record of a link whose class had the record `old` before; `stream` is the leaf's. A
    checkpoint that is `announced` is looked for in the aggregate, which leaves no doubt."""
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
    """Whether a link may begin behind what a power cut took: its leaf chose the beginning by an answer over
    the link before, which came from another page cache than that of now. An epoch that is lost gives no such
    answer. Without a record of it nothing is certain of a link on which both sides had agreed (`known`)."""
    if old is None:
        return record.boot != "" and known
    return old.created == record.created and old.boot != record.boot and not old.lost


def new_epochs(leaf: LeafRecord, known: LeafRecord | None) -> list[str]:
    """The classes whose link is another one than before."""
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
