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

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from types import NoneType
from typing import Any, Final

from agent.contract.checks import MAX_INT, ContractError, matching
from agent.contract.fields import field_of, open_record
from agent.contract.names import VERSION
from agent.contract.reading import MAX_TEXT, Reading

MAX_COMMAND_BYTES: Final = 64 * 1024
COMMANDS_INPUT: Final = "commands"
COMMAND_METRIC: Final = "petiole_command"
_MAX_VERB: Final = 64

_ID = re.compile(r"[!-~]{1,64}\Z")
_WORD = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}\Z")


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
        """The command as it is published."""
        return json.dumps({"v": VERSION, **asdict(self)}, separators=(",", ":")).encode()


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
