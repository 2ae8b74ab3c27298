"""Implements `petiole command`, which sends a command to a leaf's program and waits; run at the hub.

Exit codes: 0 done, or stored without waiting; 1 any outcome but `done`; 2 wrong usage; 5 the hub can't be
reached, or no answer came.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
import uuid
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer
import zstandard

from agent import contract
from agent.base import logs
from agent.base.wait import timeout
from agent.cli.configuration import (
    AsJson,
    ConfigFile,
    account_key,
    configuration,
    end,
    end_unreachable,
    seconds_or_end,
)
from agent.cli.query import AdminStatusError, own_server, status_of
from agent.config import Config, aggregates_of, cell_of_leaf
from agent.contract import (
    COMMANDS_INPUT,
    H_ENCODING,
    H_MESSAGE_ID,
    MAX_UNPACKED_BYTES,
    Command,
    CommandAnswer,
    CommandOutcome,
    ContractError,
    Exit,
    answer_in,
    batch_subject,
    command_subject,
    parse_reading,
)
from agent.jetstream import ApiError, JetStream, JetStreamError, RawMessage
from agent.jetstream.connection import EXPECTED
from agent.jetstream.readers import StoredHeaders

KEPT: Final = 7 * 86400.0
"""Seconds for which a returning leaf still answers an expired command."""
LOOK_SECONDS: Final = 0.2
_TTL: Final = "Nats-TTL"
"""Message lifetime header (ADR-43 of NATS)."""


async def store(js: JetStream, domain: str, app: str, verb: str, command: Command) -> int:
    """Store a command and return its sequence. It stays `KEPT` after expiry. Raises `JetStreamError`."""
    headers = {H_MESSAGE_ID: command.id}
    if command.expires is not None:
        headers[_TTL] = f"{max(1, round(command.expires - time.time() + KEPT))}s"
    return await js.publish(command_subject(domain, app, verb), command.encode(), headers)


def expires(stored: StoredHeaders) -> float:
    """When a command that `store` stored expires, in seconds since 1970."""
    ttl = stored.headers.get(_TTL, "").removesuffix("s")
    return stored.time + int(ttl) - KEPT if ttl.isdecimal() else math.inf


class AnswerWatch:
    """Watches aggregates for a command's answer."""

    def __init__(self, js: JetStream, streams: Iterable[str], domain: str) -> None:
        self._js = js
        self._subject = batch_subject(domain, "*", COMMANDS_INPUT)
        self._next = dict.fromkeys(streams, 0)

    async def begin(self) -> None:
        """Skip present messages; call before storing. Raises `JetStreamError`."""
        for stream in self._next:
            self._next[stream] = await self._last(stream) + 1

    async def answer(self, ident: str) -> CommandAnswer:
        """Wait for an answer without limit. Raises `JetStreamError`."""
        while True:
            for stream in self._next:
                async for message in self._new(stream):
                    for answer in answers_in(message):
                        if answer.id == ident:
                            return answer
            await asyncio.sleep(LOOK_SECONDS)

    async def _new(self, stream: str) -> AsyncIterator[RawMessage]:
        """Yield new answer batches."""
        last = await self._last(stream)
        while self._next[stream] <= last:
            message = await self._js.get_message(
                stream, seq=self._next[stream], next_by_subject=self._subject
            )
            if message is None:
                self._next[stream] = last + 1
                return
            self._next[stream] = message.seq + 1
            yield message

    async def _last(self, stream: str) -> int:
        """Return a stream's last sequence, 0 if missing."""
        info = await self._js.find_stream(stream)
        return 0 if info is None else info.last


def answers_in(message: RawMessage) -> list[CommandAnswer]:
    data = message.data
    try:
        if H_ENCODING in message.headers:
            data = zstandard.ZstdDecompressor().decompress(data, max_output_size=MAX_UNPACKED_BYTES)
        answers = [answer_in(parse_reading(line)) for line in data.splitlines()]
    except (zstandard.ZstdError, ContractError):
        return []
    return [answer for answer in answers if answer is not None]


_CONNECT_SECONDS: Final = 5.0
"""Limits the client's first connect of two minutes."""


@dataclass(frozen=True, slots=True)
class SentCommand:
    """A stored command. `linked` None if unknown, `answer` None if none."""

    domain: str
    app: str
    verb: str
    command: Command
    sequence: int
    linked: bool | None
    answer: CommandAnswer | None = None

    def as_json(self) -> dict[str, Any]:
        answer = self.answer
        return {
            "id": self.command.id,
            "domain": self.domain,
            "app": self.app,
            "verb": self.verb,
            "sequence": self.sequence,
            "expires": self.command.expires,
            "linked": self.linked,
            "outcome": None if answer is None else answer.outcome.value,
            "text": None if answer is None else answer.text,
        }

    def stored(self) -> str:
        """Return the sentence before an answer."""
        until = f"{datetime.fromtimestamp(self.command.expires or 0.0, UTC):%Y-%m-%d %H:%M:%SZ}"
        back = f"it runs when the leaf is back, unless that is after {until}"
        if self.linked is False:
            return f"stored; {self.domain} is not linked: {back}"
        return f"stored; {back}" if self.linked is None else f"stored; {self.domain} is linked"


def command(
    config: ConfigFile,
    domain: Annotated[str, typer.Argument(help="The leaf.", show_default=False)],
    verb: Annotated[str, typer.Argument(help="What it shall do, such as ping.", show_default=False)],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Arguments of the verb, each KEY=VALUE.", show_default=False)
    ] = None,
    app: Annotated[
        str, typer.Option(help="The program on the leaf; one of its own acknowledges what it has run.")
    ] = contract.APP,
    expires: Annotated[str, typer.Option(help="How long it may wait to be run.")] = "1h",
    wait: Annotated[str, typer.Option(help="How long to wait for the answer; 0s not at all.")] = "30s",
    as_json: AsJson = False,
) -> None:
    """Send a command to a leaf; it is stored at the hub, and the leaf's agent runs it once, in order."""
    settings = configuration(config)
    logs.set_up(settings.log.level, settings.log.format)
    command = _command(settings, domain, app, verb, arguments or [], expires)
    patience = 0.0 if wait in ("0", "0s") else seconds_or_end("--wait", wait)
    if app != contract.APP:
        # Only our own agent answers by readings of ours.
        patience = 0.0
    sent = asyncio.run(_send(settings, domain, app, verb, command, patience, quiet=as_json))
    if as_json:
        typer.echo(json.dumps(sent.as_json()))
    elif sent.answer is not None:
        typer.echo(f"{sent.answer.outcome.value}: {sent.answer.text}")
    elif patience:
        typer.echo(f"no answer within {wait}: {sent.stored()}")
    raise typer.Exit(_exit(sent, patience))


def _exit(sent: SentCommand, patience: float) -> Exit:
    if sent.answer is None:
        return Exit.UNREACHABLE if patience else Exit.WELL
    return Exit.WELL if sent.answer.outcome is CommandOutcome.DONE else Exit.FAILED


def _command(
    settings: Config, domain: str, app: str, verb: str, arguments: list[str], expires: str
) -> Command:
    if settings.role != "hub":
        end(["commands are sent at the hub; name the hub's configuration with -c"])
    domains = [leaf.domain for leaf in settings.leaves]
    if domain not in domains:
        end([f"the hub knows no leaf {domain!r}; it knows {', '.join(sorted(domains)) or 'none'}"])
    try:
        contract.check_app(app)
        contract.check_verb(verb)
    except ContractError as error:
        end([str(error)])
    until = time.time() + seconds_or_end("--expires", expires)
    command = Command(uuid.uuid4().hex, dict(map(_argument, arguments)), until)
    if (size := len(command.encode())) > contract.MAX_COMMAND_BYTES:
        end([f"the command has {size} bytes, {contract.MAX_COMMAND_BYTES} are allowed; send less in it"])
    return command


def _argument(text: str) -> tuple[str, str | int | float | bool]:
    """Parse KEY=VALUE; JSON numbers and booleans keep their type."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        end([f"{text!r} is not KEY=VALUE, such as for=10m"])
    try:
        parsed = json.loads(value, parse_constant=str)
    except ValueError:
        return key, value
    return key, parsed if isinstance(parsed, int | float) else value


async def _send(
    settings: Config, domain: str, app: str, verb: str, command: Command, patience: float, *, quiet: bool
) -> SentCommand:
    account_key(settings)
    cell = cell_of_leaf(settings, domain)
    try:
        async with timeout(_CONNECT_SECONDS) as connecting, own_server(settings, cell) as link:
            connecting.reschedule(None)
            js = JetStream(link.nc)
            watch = AnswerWatch(js, aggregates_of(settings, cell), domain)
            if patience:
                await watch.begin()
            try:
                sequence = await store(js, domain, app, verb, command)
            except ApiError as error:
                full = "if the stream of commands is full, wait until older ones expire, or purge it"
                end([f"nothing was sent: {error}; {full}"], Exit.FAILED)
            sent = SentCommand(
                domain, app, verb, command, sequence, await asyncio.to_thread(is_linked, settings, domain)
            )
            if not quiet:
                typer.echo(sent.stored(), err=bool(patience))
            answer = await _answer(watch, command.id, patience) if patience else None
            return replace(sent, answer=answer)
    except EXPECTED as error:
        end_unreachable(settings, error, "the hub's")


async def _answer(watch: AnswerWatch, ident: str, patience: float) -> CommandAnswer | None:
    try:
        async with timeout(patience):
            return await watch.answer(ident)
    except (TimeoutError, JetStreamError):
        # The command is stored whatever becomes of this watch.
        return None


def is_linked(settings: Config, domain: str) -> bool | None:
    """Return whether the leaf is linked, None if the hub's agent does not answer."""
    try:
        return bool(status_of(settings)["fleet"]["leaves"][domain]["linked"])
    except (AdminStatusError, KeyError):
        return None
