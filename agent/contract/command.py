"""Commands: what the hub asks of a leaf's programs, and how our own agent answers.

A command is a message on `cmd.<domain>.<app>.<verb>`: `{"v": 1, "id", "args": {…}, "expires": epoch seconds
or null}`, at most `MAX_COMMAND_BYTES`. Our agent is the app `agent`. It answers each command once, by a
reading of its input `commands`, so that the answer takes the way of every reading into the table:

    {"ts": …, "device": <domain>, "metric": "petiole_command", "value": <text>,
     "tags": {"verb": …, "outcome": …, "sequence": <of the command in the hub's stream>, "id": …}}

`id` is left out where the command could not be read. The text is JSON for a verb that reports something and a
sentence otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from types import NoneType
from typing import Any, Final

from agent.contract.checkpoint import is_sequence
from agent.contract.checks import (
    MAX_INT,
    ContractError,
    check_epoch,
    count_of,
    encoded,
    field_of,
    flag_of,
    matching,
    nullable,
    object_of,
    open_record,
)
from agent.contract.reading import MAX_TEXT, Reading

__all__ = [
    "APP",
    "COMMANDS",
    "COMMANDS_BYTES",
    "COMMANDS_CHECKED",
    "COMMANDS_INPUT",
    "COMMAND_METRIC",
    "MAX_COMMAND_BYTES",
    "Command",
    "CommandAnswer",
    "CommandKey",
    "CommandOutcome",
    "CommandsHeld",
    "CommandsWanted",
    "answer_in",
    "check_app",
    "check_verb",
    "command_consumer",
    "command_deliver",
    "command_subject",
    "command_subjects",
    "parse_command",
    "verb_of",
]

COMMANDS: Final = "COMMANDS"
COMMANDS_BYTES: Final = 64 * 2**20
"""The most that the stream of commands takes, on the hub and in each mirror; the server reserves it."""
APP: Final = "agent"
MAX_COMMAND_BYTES: Final = 64 * 1024
COMMANDS_INPUT: Final = "commands"
COMMAND_METRIC: Final = "petiole_command"
_MAX_VERB: Final = 64

_ID = re.compile(r"[!-~]{1,64}\Z")
_WORD = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}\Z")


def command_consumer(domain: str) -> str:
    """The hub's consumer of a leaf's commands; fixed, for a permission cannot match part of a token."""
    return f"cmd-{domain}"


def command_deliver(domain: str, epoch: str) -> str:
    """Where that consumer delivers."""
    return f"petiole.command.{domain}.{epoch}"


def command_subject(domain: str, app: str, verb: str) -> str:
    """The subject of a command; our own agent listens as app `agent`."""
    return f"cmd.{domain}.{app}.{verb}"


def command_subjects(domain: str) -> str:
    return f"cmd.{domain}.>"


class CommandOutcome(StrEnum):
    """The outcome of a command; with all but `done` and `interrupted` it has changed nothing."""

    DONE = "done"
    FAILED = "failed"
    """The handler was called and failed; the text says why."""
    EXPIRED = "expired"
    UNKNOWN = "unknown"
    """This agent has no such verb."""
    MALFORMED = "malformed"
    """The command cannot be read, or its arguments are not those of the verb."""
    INTERRUPTED = "interrupted"
    """The agent ended after it had begun and before it had answered. How far it came is unknown; it is not
    repeated."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command to an agent; its verb is in the subject."""

    id: str
    """1 to 64 visible ASCII characters."""
    args: Mapping[str, Any] = field(default_factory=dict)
    expires: float | None = None
    """Epoch seconds, None for never."""

    def encode(self) -> bytes:
        return encoded(asdict(self))


def parse_command(data: bytes | str) -> Command:
    """Read a command; raises `ContractError`."""
    if len(data) > MAX_COMMAND_BYTES:
        raise ContractError(f"command: {len(data)} bytes are above the limit of {MAX_COMMAND_BYTES}")
    row = open_record(data, "command")
    ident = matching(_ID, row.get("id"), "command: id", "1 to 64 visible ASCII characters")
    expires = field_of(row, "expires", (int, float, NoneType), "command")
    if expires is not None and not 0 <= expires <= MAX_INT:
        raise ContractError(f"command: expires is {expires!r:.80}, epoch seconds were expected")
    return Command(ident, field_of(row, "args", dict, "command"), None if expires is None else float(expires))


def check_app(value: object) -> str:
    """The name of a program that takes commands, as given; raises `ContractError`."""
    return matching(_WORD, value, "app", "1 to 32 lower-case letters, digits, '_' or '-'")


def check_verb(value: object) -> str:
    """A verb, as given; raises `ContractError`."""
    return matching(_WORD, value, "verb", "1 to 32 lower-case letters, digits, '_' or '-'")


def verb_of(subject: str) -> str:
    """The verb in the subject of a command, unchecked; cut if it is longer than any verb."""
    return subject.split(".", 3)[3][:_MAX_VERB]


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """The outcome of the command at `sequence` of the hub's stream."""

    sequence: int
    verb: str
    id: str | None
    outcome: CommandOutcome
    text: str

    def reading(self, ts: str, domain: str) -> Reading:
        """The answer as a reading; a text that is too long for one is cut."""
        tags = {"verb": self.verb, "outcome": self.outcome.value, "sequence": str(self.sequence)}
        if self.id is not None:
            tags["id"] = self.id
        text = self.text if len(self.text) <= MAX_TEXT else self.text[: MAX_TEXT - 1] + "…"
        # Half a surrogate pair, which JSON permits, is not text.
        return Reading(COMMAND_METRIC, text.encode(errors="replace").decode(), ts, domain, tags)


def answer_in(reading: Reading) -> CommandAnswer | None:
    """The answer that a reading holds, None for any other reading. Raises `ContractError`."""
    if reading.metric != COMMAND_METRIC:
        return None
    tags = reading.tags
    try:
        return CommandAnswer(
            int(tags["sequence"]),
            tags["verb"],
            tags.get("id"),
            CommandOutcome(tags["outcome"]),
            str(reading.value),
        )
    except (KeyError, ValueError) as error:
        raise ContractError(f"answer to a command: {error} in {dict(tags)!r:.200}") from None


CommandKey = tuple[int, int]
"""Identifies a command by its sequence in the hub's stream and when the hub stored it (ns since 1970). A hub
that was restored from a backup uses sequences again, at other times."""


COMMANDS_CHECKED: Final = 100


@dataclass(frozen=True, slots=True)
class CommandsWanted:
    """The leaf's mirror of its commands, as it announces it."""

    epoch: str
    """The epoch under which it wants (or has) the hub's consumer."""
    last: int
    """The sequence of the newest command in the mirror, 0 without one."""
    held: tuple[CommandKey, ...] = ()
    """Commands of the mirror that the hub is to compare with its own, at most `COMMANDS_CHECKED`."""
    idle: bool = False
    """Whether the hub may drop its consumer while the mirror lacks nothing: the mirror goes on listening. It
    has counted nothing since its consumer was last reset, so it may be dropped only if it has delivered
    nothing since then either."""


def commands_wanted(value: Any) -> CommandsWanted:
    what = "announce"
    row = object_of(value, f"{what}: commands")
    held = field_of(row, "held", list, what) if "held" in row else []
    return CommandsWanted(
        check_epoch(row.get("epoch")),
        count_of(row, "last", what),
        tuple(map(_command_key, held)),
        flag_of(row, "idle", what),
    )


def _command_key(value: Any) -> CommandKey:
    match value:
        case [int() as seq, int() as time] if is_sequence(seq) and is_sequence(time):
            return seq, time
    raise ContractError(f"announce: commands: {value!r:.80} is not a sequence and a time")


@dataclass(frozen=True, slots=True)
class CommandsHeld:
    """The hub's side of a leaf's commands."""

    epoch: str
    """The epoch under which its consumer delivers."""
    stream_created: str
    stream_last: int
    """The stream's last sequence, of any leaf's command."""
    last: int
    """The sequence of this leaf's newest command, 0 without one."""
    behind: int
    """At most how many commands the mirror lacks."""
    agreed: bool | None = None
    """Whether the announced commands are those that the hub holds at these sequences; None if it holds none
    of them any more, or does not say."""
    stays: bool = False
    """Whether it has not dropped that of a mirror that listens, for it has delivered since it was reset."""


def commands_held(value: Any) -> CommandsHeld:
    what = "answer"
    row = object_of(value, f"{what}: commands")
    return CommandsHeld(
        epoch=check_epoch(row.get("epoch")),
        stream_created=field_of(row, "stream_created", str, what),
        stream_last=count_of(row, "stream_last", what),
        last=count_of(row, "last", what),
        behind=count_of(row, "behind", what),
        agreed=nullable(row, "agreed", bool, what),
        stays=flag_of(row, "stays", what),
    )
