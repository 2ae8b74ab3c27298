"""Defines announcements of leaves and the hub's answers."""

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
    """A class as announced."""

    epoch: str
    created: str
    first: int
    last: int
    confirmed: int
    """Leaf sequence up to which the hub has all."""
    bytes: int
    """Of the stream."""
    ledger: Previous | None = None
    """Newest counts."""
    seconds_to_loss: float | None = None
    """Time to a loss at present rates; infinity for none, None if not announced."""
    acked: int = 0
    """Last sequence acknowledged by the hub in this epoch, 0 for none."""
    idle: bool = False
    """Whether the hub may drop the source until announced otherwise."""
    made: str = ""
    """When the server recreated the stream over its messages; "" if not."""


@dataclass(frozen=True, slots=True)
class Announce:
    """A leaf's announcement, every ten seconds and at link-up."""

    domain: str
    machine: str
    run: str
    versions: Mapping[str, str]
    classes: Mapping[str, ClassState]
    checkpoint: Mapping[str, Checkpoint] = field(default_factory=dict)
    clock: str = ""
    commands: CommandsWanted | None = None
    """None without command mirror."""
    repairs: bool = False
    """Requires a fresh observation, as an epoch begins from the answer."""
    every: float | None = None
    """Seconds to the next without changes, None if not announced."""
    states: Mapping[str, str] = field(default_factory=dict)
    """Faults by words of `LeafState`."""

    def encode(self) -> bytes:
        return _encoded(self)


_NEVER: Final = "inf"
_LONGEST_EVERY: Final = 3600.0


def seconds_to_loss(seconds: float | None) -> float | str | None:
    """Encode the time for JSON, which lacks infinity."""
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
        acked=count_of(value, "acked", what),
        idle=flag_of(value, "idle", what),
        made=made,
    )


def parse_announce(data: bytes | str, domain: str) -> Announce:
    """Parse an announcement on `domain`'s subject; raises `ContractError`, also for another domain."""
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
    """The hub's side of a class."""

    stream: str
    cursor: int
    """Highest leaf sequence."""
    message_id: str
    """Id there, "" for none."""
    state: str
    """The state's word."""
    agreed: bool | None = None
    """Whether the announced checkpoint holds, None if unknown."""
    checkpoint: Checkpoint | None = None
    """A newer checkpoint for the leaf to verify."""
    certain: bool = True
    """False if the cursor may be too low, after an unseen purge."""
    fallback: Checkpoint | None = None
    """Newest recorded complete position, if the hub lost messages."""
    synced: bool = True
    """False if a power cut may take the cursor; `checkpoint` is always synced."""


@dataclass(frozen=True, slots=True)
class Answer:
    classes: Mapping[str, ClassAnswer] = field(default_factory=dict)
    refused: str | None = None
    """Why the leaf was refused."""
    later: bool = False
    """Whether only temporarily."""
    commands: CommandsHeld | None = None
    """None if not announced or not available."""
    exchange: str = ""
    """Name of this exchange (`agent.contract.checkpoint`), "" for no repeats."""
    sync_seconds: float = 0.0
    """The hub's sync interval; 0 for before acks or unknown."""
    max_payload: int = 0
    """The hub's message limit, 0 if unknown; larger ones close the link."""
    spread_seconds: float = 0.0
    """The hub's time for simultaneous links of all leaves; 0 for little or unknown."""
    refused_classes: Mapping[str, str] = field(default_factory=dict)
    """Reasons by refused class."""
    clock: float = 0.0
    """The hub's clock in seconds since 1970, 0 if unknown."""

    def encode(self) -> bytes:
        return _encoded(self)


def _encoded(record: Announce | Answer) -> bytes:
    return encoded(fields_as_row(record), _row)


def _row(part: Any) -> Any:
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
        certain=flag_of(value, "certain", what),
        fallback=optional(value, "fallback", parse_checkpoint),
        synced=flag_of(value, "synced", what),
    )


def parse_answer(data: bytes | str) -> Answer:
    """Parse an answer; raises `ContractError`."""
    row = open_record(data, "answer")
    classes = field_of(row, "classes", dict, "answer")
    return Answer(
        {check_class(cls): _class_answer(value) for cls, value in classes.items()},
        nullable(row, "refused", str, "answer"),
        bool(nullable(row, "later", bool, "answer")),
        optional(row, "commands", commands_held),
        check_exchange(row["exchange"]) if row.get("exchange") else "",
        _interval(row["sync_seconds"], "answer: sync_seconds") if row.get("sync_seconds") else 0.0,
        count_of(row, "max_payload", "answer"),
        _interval(row["spread_seconds"], "answer: spread_seconds") if row.get("spread_seconds") else 0.0,
        optional(row, "refused_classes", _refused_classes) or {},
        _moment(row["clock"]) if row.get("clock") else 0.0,
    )
