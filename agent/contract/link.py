"""What leaf and hub exchange over the link: the announcement and its answer, each with its checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from agent.contract.checkpoint import Checkpoint, check_exchange, checkpoint_row, parse_checkpoint
from agent.contract.checks import (
    MAX_INT,
    ContractError,
    check_class,
    check_created,
    check_domain,
    check_epoch,
    check_machine,
    check_run,
    count_of,
    encoded,
    field_of,
    fields_as_row,
    flag_of,
    nullable,
    object_of,
    open_record,
    optional,
)
from agent.contract.command import CommandsHeld, CommandsWanted, commands_held, commands_wanted
from agent.contract.leaf_state import parse_states
from agent.contract.ledger import Previous, parse_previous

__all__ = [
    "Announce",
    "Answer",
    "ClassAnswer",
    "ClassState",
    "parse_announce",
    "parse_answer",
    "seconds_to_loss",
]


@dataclass(frozen=True, slots=True)
class ClassState:
    """One class as its leaf announces it."""

    epoch: str
    created: str
    first: int
    last: int
    confirmed: int
    """The leaf sequence up to which the hub is known to hold everything."""
    bytes: int
    """What the stream holds."""
    ledger: Previous | None = None
    """The newest counts."""
    seconds_to_loss: float | None = None
    """How long until a reading is lost at the present rates; infinity if none will be, None if not
    announced."""
    acked: int = 0
    """The last sequence that the hub has acknowledged in this epoch, 0 if none."""
    idle: bool = False
    """Whether the hub may drop the source until the leaf announces that it is not idle."""
    made: str = ""
    """When the leaf's server created the stream anew over the messages of the one of `created`; "" if it did
    not."""


@dataclass(frozen=True, slots=True)
class Announce:
    """What a leaf announces to the registrar every ten seconds and at each link-up."""

    domain: str
    machine: str
    run: str
    versions: Mapping[str, str]
    classes: Mapping[str, ClassState]
    checkpoint: Mapping[str, Checkpoint] = field(default_factory=dict)
    clock: str = ""
    commands: CommandsWanted | None = None
    """None from an agent without a mirror of its commands."""
    repairs: bool = False
    """A new epoch begins from the answer, so the hub must not answer from a cached observation."""
    every: float | None = None
    """Seconds to the next announcement while nothing happens, None if not announced."""
    states: Mapping[str, str] = field(default_factory=dict)
    """What is wrong with the leaf, by the words of `LeafState`."""

    def encode(self) -> bytes:
        return _encoded(self)


_NEVER: Final = "inf"
_LONGEST_EVERY: Final = 3600.0


def seconds_to_loss(seconds: float | None) -> float | str | None:
    """The time to loss in JSON, which has no number for infinity."""
    return _NEVER if seconds is not None and seconds >= MAX_INT else seconds


def _parse_seconds(value: Any) -> float:
    if value == _NEVER:
        return math.inf
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < MAX_INT:
        raise ContractError(f'seconds_to_loss is {value!r:.80}, a number or "inf" was expected')
    return float(value)


def _interval(value: Any, what: str = "announce: every") -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _LONGEST_EVERY:
        raise ContractError(
            f"{what} is {value!r:.80}, a number of seconds up to {_LONGEST_EVERY:g} was expected"
        )
    return float(value)


def _refused_classes(value: Any) -> Mapping[str, str]:
    row = object_of(value, "answer: refused_classes")
    return {check_class(cls): field_of(row, cls, str, "answer") for cls in row}


def _moment(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < MAX_INT:
        raise ContractError(f"answer: clock is {value!r:.80}, seconds since 1970 were expected")
    return float(value)


def class_state(value: Any, what: str) -> ClassState:
    value = object_of(value, f"{what}: a class")
    made = check_created(value["made"]) if value.get("made") else ""
    return ClassState(
        epoch=check_epoch(value.get("epoch")),
        created=check_created(value.get("created")) if made else field_of(value, "created", str, what),
        first=count_of(value, "first", what),
        last=count_of(value, "last", what),
        confirmed=count_of(value, "confirmed", what),
        bytes=count_of(value, "bytes", what),
        ledger=optional(value, "ledger", parse_previous),
        seconds_to_loss=optional(value, "seconds_to_loss", _parse_seconds),
        acked=count_of(value, "acked", what, absent=0),
        idle=flag_of(value, "idle", what),
        made=made,
    )


def parse_announce(data: bytes | str, domain: str) -> Announce:
    """Read the announcement that came on the subject of `domain`; raises `ContractError`, also when the
    announcement names another domain than its subject."""
    what = "announce"
    row = open_record(data, what)
    named = check_domain(row.get("domain"))
    if named != domain:
        raise ContractError(f"announce: domain {named!r} was announced on the subject of {domain!r}")
    classes = field_of(row, "classes", dict, what)
    versions = field_of(row, "versions", dict, what)
    if not all(isinstance(name, str) and isinstance(value, str) for name, value in versions.items()):
        raise ContractError("announce: versions must map text to text")
    return Announce(
        domain=named,
        machine=check_machine(row.get("machine")),
        run=check_run(row.get("run")),
        versions=versions,
        classes={check_class(cls): class_state(value, what) for cls, value in classes.items()},
        checkpoint={
            check_class(c): parse_checkpoint(v) for c, v in field_of(row, "checkpoint", dict, what).items()
        },
        clock=field_of(row, "clock", str, what),
        commands=optional(row, "commands", commands_wanted),
        repairs=flag_of(row, "repairs", what),
        every=optional(row, "every", _interval),
        states=optional(row, "states", parse_states) or {},
    )


@dataclass(frozen=True, slots=True)
class ClassAnswer:
    """The hub's side of one class."""

    stream: str
    cursor: int
    """The highest leaf sequence that it holds."""
    message_id: str
    """The id of the message there, "" if it has none."""
    state: str
    """One word for the state."""
    agreed: bool | None = None
    """Whether the announced checkpoint still holds, None if unknown."""
    checkpoint: Checkpoint | None = None
    """A newer checkpoint that the leaf may adopt after a check of its own message."""
    certain: bool = True
    """False if the cursor may be too low: the server lost count of a source that was purged unseen."""
    fallback: Checkpoint | None = None
    """If the hub lacks what it had held, the newest position up to which its records show that it holds
    all."""
    synced: bool = True
    """False if a power cut at the hub may still take what is at the cursor; `checkpoint` is always on its
    disk."""


@dataclass(frozen=True, slots=True)
class Answer:
    classes: Mapping[str, ClassAnswer] = field(default_factory=dict)
    refused: str | None = None
    """A sentence why the leaf was refused."""
    later: bool = False
    """Whether it was refused only for now."""
    commands: CommandsHeld | None = None
    """None if no commands were announced, or if the hub cannot answer for them now."""
    exchange: str = ""
    """The name of this exchange (`agent.contract.checkpoint`), "" if the leaf is not to repeat it."""
    sync_seconds: float = 0.0
    """How often the hub's server syncs its disk; 0: before it acknowledges, or it does not say."""
    max_payload: int = 0
    """Bytes that the hub's server takes in a message, 0 if it does not say. A larger one closes the link."""
    spread_seconds: float = 0.0
    """What the hub's server takes for the links of all its leaves when they dial at once; 0: little, or it
    does not say."""
    refused_classes: Mapping[str, str] = field(default_factory=dict)
    """A sentence for each class that the hub does not take in; the others are answered."""
    clock: float = 0.0
    """Seconds since 1970 by the hub's clock when it answered, 0 if it does not say."""

    def encode(self) -> bytes:
        return _encoded(self)


def _encoded(record: Announce | Answer) -> bytes:
    return encoded(fields_as_row(record), _row)


def _row(part: Any) -> Any:
    """A part of a record as JSON has it."""
    if isinstance(part, Checkpoint):
        return checkpoint_row(part)
    row = fields_as_row(part)
    if isinstance(part, ClassState):
        row["seconds_to_loss"] = seconds_to_loss(part.seconds_to_loss)
    return row


def _class_answer(value: Any) -> ClassAnswer:
    what = "answer"
    value = object_of(value, f"{what}: a class")
    return ClassAnswer(
        stream=field_of(value, "stream", str, what),
        cursor=count_of(value, "cursor", what),
        message_id=field_of(value, "message_id", str, what),
        state=field_of(value, "state", str, what),
        agreed=nullable(value, "agreed", bool, what),
        checkpoint=optional(value, "checkpoint", parse_checkpoint),
        certain=flag_of(value, "certain", what, absent=True),
        fallback=optional(value, "fallback", parse_checkpoint),
        synced=flag_of(value, "synced", what, absent=True),
    )


def parse_answer(data: bytes | str) -> Answer:
    """Read an answer to an announcement; raises `ContractError`."""
    row = open_record(data, "answer")
    classes = field_of(row, "classes", dict, "answer")
    return Answer(
        {check_class(cls): _class_answer(value) for cls, value in classes.items()},
        nullable(row, "refused", str, "answer"),
        bool(nullable(row, "later", bool, "answer")),
        optional(row, "commands", commands_held),
        check_exchange(row["exchange"]) if row.get("exchange") else "",
        _interval(row["sync_seconds"], "answer: sync_seconds") if row.get("sync_seconds") else 0.0,
        count_of(row, "max_payload", "answer", absent=0),
        _interval(row["spread_seconds"], "answer: spread_seconds") if row.get("spread_seconds") else 0.0,
        optional(row, "refused_classes", _refused_classes) or {},
        _moment(row["clock"]) if row.get("clock") else 0.0,
    )
