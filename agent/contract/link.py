"""What leaf and hub tell each other: announce and answer with their checkpoint, and what ingest committed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from agent.contract.checkpoint import Checkpoint, checkpoint_row, is_sequence, parse_checkpoint
from agent.contract.checks import (
    MAX_INT,
    ContractError,
    check_class,
    check_domain,
    check_epoch,
    check_machine,
    check_run,
)
from agent.contract.fields import count_of, field_of, open_record, optional
from agent.contract.ledger import Previous, parse_previous
from agent.contract.names import VERSION


@dataclass(frozen=True, slots=True)
class ClassState:
    """One class as its leaf announces it. `confirmed` is the leaf sequence up to which the hub is known to
    hold everything; `bytes` is what the stream holds; `ledger` repeats the newest counts. `seconds_to_loss`
    is for people: how long until something would be lost as things go, infinity where nothing threatens, and
    None from an agent that does not say. `acked` is the last sequence that the hub has acknowledged through
    this epoch, 0 where it has acknowledged none."""

    epoch: str
    created: str
    first: int
    last: int
    confirmed: int
    bytes: int
    ledger: Previous | None = None
    seconds_to_loss: float | None = None
    acked: int = 0


CommandKey = tuple[int, int]
"""What identifies a command: its sequence in the hub's stream, and when the hub stored it (ns since 1970). A
hub that was restored from a backup uses sequences again, at other times."""
COMMANDS_CHECKED: Final = 100


@dataclass(frozen=True, slots=True)
class CommandsWanted:
    """The leaf's mirror of its commands, as it announces it: the epoch under which it wants (or has) the
    hub's consumer, the sequence of the newest command in the mirror, 0 where there is none, and `held`:
    commands of the mirror that the hub is to compare with its own, at most `COMMANDS_CHECKED`."""

    epoch: str
    last: int
    held: tuple[CommandKey, ...] = ()


def _commands_wanted(value: Any) -> CommandsWanted:
    what = "announce"
    if not isinstance(value, dict):
        raise ContractError(f"{what}: commands is {value!r:.80}, an object was expected")
    held = field_of(value, "held", list, what) if "held" in value else []
    return CommandsWanted(
        check_epoch(value.get("epoch")), count_of(value, "last", what), tuple(map(_command_key, held))
    )


def _command_key(value: Any) -> CommandKey:
    match value:
        case [int() as seq, int() as time] if is_sequence(seq) and is_sequence(time):
            return seq, time
    raise ContractError(f"announce: commands: {value!r:.80} is not a sequence and a time")


@dataclass(frozen=True, slots=True)
class Announce:
    """What a leaf tells the registrar every ten seconds and at each link-up; `commands` is absent in an agent
    that has no mirror of its commands. With `repairs` a new epoch is about to begin from the answer, for
    which what the hub saw a moment ago is too old. The next one comes `every` so many seconds while nothing
    happens, None from an agent that does not say."""

    domain: str
    machine: str
    run: str
    versions: Mapping[str, str]
    classes: Mapping[str, ClassState]
    checkpoint: Mapping[str, Checkpoint] = field(default_factory=dict)
    clock: str = ""
    commands: CommandsWanted | None = None
    repairs: bool = False
    every: float | None = None

    def encode(self) -> bytes:
        """The announcement as it is requested."""
        row = asdict(self)
        for cls, one in self.classes.items():
            row["classes"][cls]["seconds_to_loss"] = seconds_to_loss(one.seconds_to_loss)
        row["checkpoint"] = {cls: checkpoint_row(one) for cls, one in self.checkpoint.items()}
        return json.dumps({"v": VERSION, **row}, separators=(",", ":")).encode()


_NEVER: Final = "inf"
_LONGEST_EVERY: Final = 3600.0


def seconds_to_loss(seconds: float | None) -> float | str | None:
    """The time to first loss as it stands in JSON, which has no number for infinity."""
    return _NEVER if seconds is not None and seconds >= MAX_INT else seconds


def _parse_seconds(value: Any) -> float:
    if value == _NEVER:
        return math.inf
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < MAX_INT:
        raise ContractError(f'seconds_to_loss is {value!r:.80}, a number or "inf" was expected')
    return float(value)


def _interval(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _LONGEST_EVERY:
        raise ContractError(
            f"announce: every is {value!r:.80}, a number of seconds up to {_LONGEST_EVERY:g} was expected"
        )
    return float(value)


def class_state(value: Any, what: str) -> ClassState:
    if not isinstance(value, dict):
        raise ContractError(f"{what}: a class is {value!r:.80}, an object was expected")
    return ClassState(
        epoch=check_epoch(value.get("epoch")),
        created=field_of(value, "created", str, what),
        first=count_of(value, "first", what),
        last=count_of(value, "last", what),
        confirmed=count_of(value, "confirmed", what),
        bytes=count_of(value, "bytes", what),
        ledger=optional(value, "ledger", parse_previous),
        seconds_to_loss=optional(value, "seconds_to_loss", _parse_seconds),
        acked=count_of(value, "acked", what) if "acked" in value else 0,
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
        commands=optional(row, "commands", _commands_wanted),
        repairs="repairs" in row and field_of(row, "repairs", bool, what),
        every=optional(row, "every", _interval),
    )


@dataclass(frozen=True, slots=True)
class ClassAnswer:
    """The hub's side of one class: its `cursor` (highest leaf sequence it holds), the id of the message there
    ("" where it has none), one word of `state`, whether the announced checkpoint still holds (None: nobody
    can tell any more), and a newer `checkpoint` that the leaf may adopt after a look at its own message.
    Where it is not `certain` the cursor may be too low: the hub's server lost count of a source whose
    messages were purged unseen. Where the hub lacks what it had held, `fallback` is the newest place up to
    which it still holds all, as its records tell."""

    stream: str
    cursor: int
    message_id: str
    state: str
    agreed: bool | None = None
    checkpoint: Checkpoint | None = None
    certain: bool = True
    fallback: Checkpoint | None = None


@dataclass(frozen=True, slots=True)
class CommandsHeld:
    """The hub's side of a leaf's commands: the epoch under which its consumer delivers, when the stream was
    made and its last sequence (of any leaf's command), the sequence of this leaf's newest command (0 without
    one), and at most how many of its commands the mirror lacks. `agreed` says whether the commands that were
    announced as held are those that the hub holds at these sequences; None where it holds none of them any
    more, or does not say."""

    epoch: str
    stream_created: str
    stream_last: int
    last: int
    behind: int
    agreed: bool | None = None


def _commands_held(value: Any) -> CommandsHeld:
    what = "answer"
    if not isinstance(value, dict):
        raise ContractError(f"{what}: commands is {value!r:.80}, an object was expected")
    return CommandsHeld(
        epoch=check_epoch(value.get("epoch")),
        stream_created=field_of(value, "stream_created", str, what),
        stream_last=count_of(value, "stream_last", what),
        last=count_of(value, "last", what),
        behind=count_of(value, "behind", what),
        agreed=optional(value, "agreed", lambda _: bool(field_of(value, "agreed", bool, what))),
    )


@dataclass(frozen=True, slots=True)
class Answer:
    """The registrar's answer; `refused` says in words why the leaf was not taken in, and `later` that it was
    only not taken in now. `commands` is absent where none were announced, or where the hub cannot tell
    now."""

    classes: Mapping[str, ClassAnswer] = field(default_factory=dict)
    refused: str | None = None
    later: bool = False
    commands: CommandsHeld | None = None

    def encode(self) -> bytes:
        """The answer as it is sent."""
        row = asdict(self)
        for cls, one in self.classes.items():
            row["classes"][cls]["checkpoint"] = one.checkpoint and checkpoint_row(one.checkpoint)
            row["classes"][cls]["fallback"] = one.fallback and checkpoint_row(one.fallback)
        return json.dumps({"v": VERSION, **row}, separators=(",", ":")).encode()


def _class_answer(value: Any) -> ClassAnswer:
    what = "answer"
    if not isinstance(value, dict):
        raise ContractError(f"{what}: a class is {value!r:.80}, an object was expected")
    return ClassAnswer(
        stream=field_of(value, "stream", str, what),
        cursor=count_of(value, "cursor", what),
        message_id=field_of(value, "message_id", str, what),
        state=field_of(value, "state", str, what),
        agreed=optional(value, "agreed", lambda _: bool(field_of(value, "agreed", bool, what))),
        checkpoint=optional(value, "checkpoint", parse_checkpoint),
        certain="certain" not in value or bool(field_of(value, "certain", bool, what)),
        fallback=optional(value, "fallback", parse_checkpoint),
    )


def parse_answer(data: bytes | str) -> Answer:
    """Read an answer to an announcement; raises `ContractError`."""
    row = open_record(data, "answer")
    classes = field_of(row, "classes", dict, "answer")
    return Answer(
        {check_class(cls): _class_answer(value) for cls, value in classes.items()},
        optional(row, "refused", lambda _: str(field_of(row, "refused", str, "answer"))),
        bool(optional(row, "later", lambda _: field_of(row, "later", bool, "answer"))),
        optional(row, "commands", _commands_held),
    )


@dataclass(frozen=True, slots=True)
class Committed:
    """What `ingest` has committed of an aggregate: all up to `seq` of the stream made at `created`."""

    stream: str
    created: str
    seq: int

    def encode(self) -> bytes:
        """The record as it is sent."""
        return json.dumps({"v": VERSION, **asdict(self)}, separators=(",", ":")).encode()


def parse_committed(data: bytes | str) -> Committed:
    """Read a committed record; raises `ContractError`."""
    row = open_record(data, "committed")
    return Committed(
        field_of(row, "stream", str, "committed"),
        field_of(row, "created", str, "committed"),
        count_of(row, "seq", "committed"),
    )
