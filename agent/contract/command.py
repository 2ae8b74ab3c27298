"""Defines commands to leaves' programs and the agent's answers.

A command on `cmd.<domain>.<app>.<verb>` is `{"v": 1, "id", "args": {…}, "expires": epoch seconds or null}`,
at most `MAX_COMMAND_BYTES`. The agent is the app `agent` and answers once by a reading of input `commands`:

    {"ts": …, "device": <domain>, "metric": "petiole_command", "value": <text>,
     "tags": {"verb": …, "outcome": …, "sequence": <of the command in the hub's stream>, "id": …}}

`id` is missing for unreadable commands. The text is JSON for reporting verbs, else a sentence.
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
"""Size of the command stream and each mirror, reserved by servers."""
APP: Final = "agent"
MAX_COMMAND_BYTES: Final = 64 * 1024
COMMANDS_INPUT: Final = "commands"
COMMAND_METRIC: Final = "petiole_command"
_MAX_VERB: Final = 64

_ID = re.compile(r"[!-~]{1,64}\Z")
_WORD = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}\Z")


def command_consumer(domain: str) -> str:
    """Return the hub's fixed consumer of a leaf's commands; permissions can't match parts of tokens."""
    return f"cmd-{domain}"


def command_deliver(domain: str, epoch: str) -> str:
    """Return that consumer's deliver subject."""
    return f"petiole.command.{domain}.{epoch}"


def command_subject(domain: str, app: str, verb: str) -> str:
    """Return a command's subject."""
    return f"cmd.{domain}.{app}.{verb}"


def command_subjects(domain: str) -> str:
    return f"cmd.{domain}.>"


class CommandOutcome(StrEnum):
    """A command's outcome; only `done` and `interrupted` may have changed something."""

    DONE = "done"
    FAILED = "failed"
    """The handler failed; the text has the reason."""
    EXPIRED = "expired"
    UNKNOWN = "unknown"
    """Unknown verb."""
    MALFORMED = "malformed"
    """Unreadable command or arguments."""
    INTERRUPTED = "interrupted"
    """The agent ended during the command; it is not repeated."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command; the subject has its verb."""

    id: str
    """1 to 64 visible ASCII characters."""
    args: Mapping[str, Any] = field(default_factory=dict)
    expires: float | None = None
    """Epoch seconds, None for never."""

    def encode(self) -> bytes:
        return encoded(asdict(self))


def parse_command(data: bytes | str) -> Command:
    if len(data) > MAX_COMMAND_BYTES:
        raise ContractError(f"command: {len(data)} bytes are above the limit of {MAX_COMMAND_BYTES}")
    row = open_record(data, "command")
    ident = matching(_ID, row.get("id"), "command: id", "1 to 64 visible ASCII characters")
    expires = field_of(row, "expires", (int, float, NoneType), "command")
    if expires is not None and not 0 <= expires <= MAX_INT:
        raise ContractError(f"command: expires is {expires!r:.80}, epoch seconds were expected")
    return Command(ident, field_of(row, "args", dict, "command"), None if expires is None else float(expires))


def check_app(value: object) -> str:
    """Return a valid program name; raises `ContractError`."""
    return matching(_WORD, value, "app", "1 to 32 lower-case letters, digits, '_' or '-'")


def check_verb(value: object) -> str:
    """Return a valid verb; raises `ContractError`."""
    return matching(_WORD, value, "verb", "1 to 32 lower-case letters, digits, '_' or '-'")


def verb_of(subject: str) -> str:
    """Return the unchecked verb of a subject, cut to a verb's length."""
    return subject.split(".", 3)[3][:_MAX_VERB]


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """The outcome of the command at `sequence`."""

    sequence: int
    verb: str
    id: str | None
    outcome: CommandOutcome
    text: str

    def reading(self, ts: str, domain: str) -> Reading:
        """Return the answer as a reading; cuts long text."""
        tags = {"verb": self.verb, "outcome": self.outcome.value, "sequence": str(self.sequence)}
        if self.id is not None:
            tags["id"] = self.id
        text = self.text if len(self.text) <= MAX_TEXT else self.text[: MAX_TEXT - 1] + "…"
        # Half a surrogate pair, which JSON permits, is not text.
        return Reading(COMMAND_METRIC, text.encode(errors="replace").decode(), ts, domain, tags)


def answer_in(reading: Reading) -> CommandAnswer | None:
    """Return the answer in a reading, or None. Raises `ContractError`."""
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
"""Sequence and hub storage time (ns since 1970), since a restored hub reuses sequences."""


COMMANDS_CHECKED: Final = 100


@dataclass(frozen=True, slots=True)
class CommandsWanted:
    """The leaf's announced command mirror."""

    epoch: str
    """Epoch of the wanted hub consumer."""
    last: int
    """Newest command's sequence, 0 for none."""
    held: tuple[CommandKey, ...] = ()
    """Commands for comparison, at most `COMMANDS_CHECKED`."""
    idle: bool = False
    """Whether the hub may drop its consumer while the mirror is complete and listening.

    It must not have delivered since its last reset, as the mirror counted nothing.
    """


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
    """Its consumer's epoch."""
    stream_created: str
    stream_last: int
    """The stream's last sequence, of any leaf."""
    last: int
    """This leaf's newest sequence, 0 for none."""
    behind: int
    """Upper bound of commands missing in the mirror."""
    agreed: bool | None = None
    """Whether announced commands match; None if unknown."""
    stays: bool = False
    """Whether the consumer was kept because it delivered since its reset."""


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
