"""Runs this leaf's commands, each at most once and in order, and answers each by one reading.

It is a pull input `commands` on the stream `COMMANDS`: answer and position are stored together. The position
is saved before a command runs; one begun but unanswered is later answered `interrupted`.

Messages are read by sequence, so no other client can drain them and non-UTF-8 subjects arrive as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Final

import structlog

from agent.base.clock import Look, wall_ns
from agent.base.logs import LogEdge
from agent.base.metrics import Metrics
from agent.base.wait import event_within, timeout, unless
from agent.contract import (
    APP,
    COMMANDS,
    COMMANDS_INPUT,
    Command,
    CommandAnswer,
    CommandOutcome,
    ContractError,
    command_subject,
    machine_time,
    parse_command,
    verb_of,
)
from agent.jetstream import STREAM_NOT_FOUND, ApiError, JetStream, JetStreamError, RawMessage, nanoseconds
from agent.leaf.commands.cursor import (
    CommandCursor,
    CommandPosition,
    ExpiryVerdict,
    RunCommand,
    judge_expiry,
    parse_position,
    unanswered,
)
from agent.leaf.commands.handlers import ArgumentError, CommandHandler, Reply
from agent.leaf.commands.overrides import CommandError
from agent.leaf.intake import Chunk, Intake, RefusedError, UnknownOutcomeError
from agent.leaf.state_file import StateFile
from agent.leaf.stream_configs import ORIGIN_METADATA

POLL_SECONDS: Final = 1.0
SPACING: Final = 0.02
"""Seconds between commands, to bound their load."""
CLOCK_SECONDS: Final = 60.0
"""Total wait of possibly expired commands for the clock to be set."""
HANDLER_SECONDS: Final = 30.0
_RETRY: Final = 1.0
_MAX_RETRY: Final = 10.0
_CUT: Final = 200

log = structlog.get_logger("commands")


class CommandRunner:
    """Runs the commands of one agent; answers go to class `cls`."""

    _intake: Intake
    _stopping: asyncio.Event

    def __init__(
        self,
        cls: str,
        state: StateFile,
        handlers: Mapping[str, CommandHandler],
        metrics: Metrics,
        clock: Look,
    ) -> None:
        self._cls, self._state, self._handlers, self._metrics, self._clock = (
            cls,
            state,
            handlers,
            metrics,
            clock,
        )
        self._recent = state.current.commands_run
        self._js: JetStream | None = None
        self._unsure_since: float | None = None
        self._reading = LogEdge(log, "commands readable again")
        self._storing = LogEdge(log, "answers to commands stored again")

    @property
    def name(self) -> str:
        """The input's name in batch subjects."""
        return COMMANDS_INPUT

    @contextlib.contextmanager
    def connected(self, js: JetStream) -> Iterator[None]:
        """Read over this connection within the scope."""
        self._js = js
        try:
            yield
        finally:
            self._js = None

    async def run(self, intake: Intake, stopping: asyncio.Event) -> None:
        """Run commands until `stopping`. Raises `ContractError` for an unreadable last position, to avoid
        repeats.
        """
        self._intake, self._stopping = intake, stopping
        answered = await unless(stopping, intake.position(COMMANDS_INPUT))
        if answered is None or stopping.is_set():
            return
        cursor = CommandCursor(await self._last(answered.position), self._recent)
        while not stopping.is_set():
            moved = await self._step(cursor)
            await event_within(stopping, SPACING if moved else POLL_SECONDS)

    async def _last(self, text: str | None) -> CommandPosition | None:
        """Return the last begun command, after answering it if needed."""
        answered = None if text is None else parse_position(text)
        saved = self._state.current.command
        begun = None if saved is None else parse_position(saved)
        if begun is None or not unanswered(begun, answered, self._recent):
            return answered
        ended = "the agent ended after it had begun this command; it is not run again"
        await self._answer(begun, CommandOutcome.INTERRUPTED, ended)
        return begun

    async def _step(self, cursor: CommandCursor) -> bool:
        """Poll once and run a command; False if the next poll may wait."""
        if self._js is None:
            return False
        try:
            message = await unless(self._stopping, _next(self._js, cursor, self._intake.domain))
        except JetStreamError as error:
            # Before the first link there is no mirror yet: not a fault of this leaf.
            if not (isinstance(error, ApiError) and error.err_code == STREAM_NOT_FOUND):
                self._reading.begin(f"commands cannot be read: {error}")
            return False
        self._reading.end()
        if message is None:
            return False
        command, malformed = _parsed(message)
        ident, stored = "" if command is None else command.id, nanoseconds(message.time)
        position = cursor.take(message.seq, stored, ident, verb_of(message.subject))
        if position is not None:
            run = (position.seq, stored, position.id)
            if await self._handle(position, command, malformed, run):
                self._recent.add(run)
                self._state.mark()
        return True

    async def _handle(
        self, position: CommandPosition, command: Command | None, malformed: str, run: RunCommand
    ) -> bool:
        """Run a command if allowed; False when stopping before its answer is stored."""
        if command is None:
            return await self._answer(position, CommandOutcome.MALFORMED, malformed)
        handler = self._handlers.get(position.verb)
        if handler is None:
            unknown = (
                f"there is no verb {position.verb!r} here; there are {', '.join(sorted(self._handlers))}"
            )
            return await self._answer(position, CommandOutcome.UNKNOWN, unknown)
        too_late = await self._too_late(command.expires, run[1] / 1e9, handler)
        if self._stopping.is_set():
            return False
        if too_late is not None:
            return await self._answer(position, CommandOutcome.EXPIRED, too_late)
        self._recent.add(run)
        outcome, reply = await self._carry_out(position, handler, command)
        is_stored = await self._answer(position, outcome, reply.text)
        if is_stored and reply.then is not None:
            reply.then()
        return is_stored

    async def _too_late(self, expires: float | None, stored: float, handler: CommandHandler) -> str | None:
        """Return why a command may not run any more, or None."""
        loop = asyncio.get_running_loop()
        while True:
            now = self._clock()
            here = _time(now.wall / 1e9)
            verdict = judge_expiry(expires, stored, now)
            if verdict is ExpiryVerdict.RUN and expires is not None:
                self._unsure_since = None
            if verdict is ExpiryVerdict.UNSURE and self._unsure_since is None:
                self._unsure_since = loop.time()
            if verdict is ExpiryVerdict.RUN or (verdict is ExpiryVerdict.UNSURE and handler.harmless):
                return None
            if verdict is ExpiryVerdict.EXPIRED:
                return f"expired at {_time(expires or 0.0)}; here it is {here}; it was not run"
            if self._stopping.is_set() or loop.time() - (self._unsure_since or 0.0) > CLOCK_SECONDS:
                return (
                    f"cannot tell whether it has expired: this machine's clock says {here}, "
                    f"but the hub had stored the command at {_time(stored)}. It was not run; set the clock "
                    "and send it again"
                )
            await event_within(self._stopping, POLL_SECONDS)

    async def _carry_out(
        self, position: CommandPosition, handler: CommandHandler, command: Command
    ) -> tuple[CommandOutcome, Reply]:
        self._state.current.command = position.encode()
        try:
            await self._state.save()
        except OSError as error:
            if not handler.harmless:
                unsafe = f"not run: the state file cannot be written ({error}), so it might run twice"
                return CommandOutcome.FAILED, Reply(unsafe)
        try:
            async with timeout(HANDLER_SECONDS):
                return CommandOutcome.DONE, await handler.act(command.args)
        except ArgumentError as error:
            return CommandOutcome.MALFORMED, Reply(str(error))
        except CommandError as error:
            return CommandOutcome.FAILED, Reply(str(error))
        except TimeoutError:
            return CommandOutcome.FAILED, Reply(f"timed out after {HANDLER_SECONDS:.0f} s")
        except Exception as error:  # whatever a handler fails with, the next command is run
            log.error("command handler failed", verb=position.verb, exc_info=error)
            return CommandOutcome.FAILED, Reply(f"{type(error).__name__}: {error}")

    async def _answer(self, position: CommandPosition, outcome: CommandOutcome, text: str) -> bool:
        """Store the answer; False when stopping before."""
        log.info("command", verb=position.verb, id=position.id, outcome=outcome.value, answer=text[:_CUT])
        self._metrics.commands.labels(outcome.value).inc()
        answer = CommandAnswer(position.seq, position.verb, position.id or None, outcome, text)
        line = answer.reading(machine_time(wall_ns()), self._intake.domain).encode() + b"\n"
        chunk = Chunk(line, 1, position=position.encode())
        while not self._stopping.is_set():
            try:
                await self._intake.submit(COMMANDS_INPUT, self._cls, chunk)
                stored = True
            except RefusedError as refusal:
                self._storing.begin(f"answers to commands cannot be stored, further commands wait: {refusal}")
                delay = min(refusal.retry_after or _RETRY, _MAX_RETRY)
                await event_within(self._stopping, delay)
                stored = False
            except UnknownOutcomeError as error:
                self._storing.begin(str(error))
                reached = await unless(self._stopping, self._intake.position(COMMANDS_INPUT))
                stored = reached is not None and reached.position == chunk.position
            if stored:
                self._storing.end()
                return True
        return False


async def _next(js: JetStream, cursor: CommandCursor, domain: str) -> RawMessage | None:
    """Return the next command, new or not. Raises `JetStreamError`."""
    info = await js.stream_info(COMMANDS)
    metadata = info.config.get("metadata") or {}
    cursor.enter(info.created, metadata.get(ORIGIN_METADATA, ""))
    if info.last < cursor.next:
        return None
    message = await js.get_message(
        COMMANDS, seq=cursor.next, next_by_subject=command_subject(domain, APP, ">")
    )
    if message is None:
        cursor.skip(info.last)
    return message


def _parsed(message: RawMessage) -> tuple[Command | None, str]:
    """Return the command, or None and its fault."""
    try:
        return parse_command(message.data), ""
    except ContractError as error:
        return None, str(error)


def _time(seconds: float) -> str:
    """Format epoch seconds as RFC 3339 in milliseconds; year 9999 beyond the calendar."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError):
        return "9999-12-31T23:59:59.000Z"
