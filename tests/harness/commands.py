"""Commands by hand: sent at the hub, their answers read from the leaf's stream or the hub's aggregate; and a
local program that takes commands with the loop of docs/commands.md, and what it was handed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from nats.aio.client import Client
from nats.aio.msg import Msg

from agent.base.metrics import Metrics
from agent.contract import (
    Command,
    CommandAnswer,
    answer_in,
    batch_subject,
    command_subject,
    hub_api,
    leaf_stream,
    parse_command,
    parse_reading,
)
from agent.jetstream import JetStream, JetStreamError, RawMessage
from agent.leaf.link.command_mirror.controller import CommandMirror
from agent.leaf.link.command_mirror.local_consumers import ProgramPositions
from agent.leaf.link.command_mirror.rest import MirrorRest
from agent.leaf.state_file import StateFile
from agent.testing.stored_stream import lines_of
from tests.harness.agents import CLASS, StreamProbe, probe_stream
from tests.harness.registrar import hub_of
from tests.harness.servers import ServerPair
from tests.harness.wait import WAIT_SECONDS, until


def waking_mirror(domain: str, state: StateFile, programs: ProgramPositions) -> CommandMirror:
    """The mirror of a leaf whose commands never rest; it looks and announces when a test says so. The leaf
    must have its stream, or each look waits five seconds for an answer."""
    awake = MirrorRest(domain, leaf_stream(domain, CLASS), None, lambda: None)
    return CommandMirror(domain, hub_api(tenant=False), state, programs, Metrics(), lambda: None, awake)


class Desk:
    """Sends commands to the first leaf of a server pair and sees what becomes of them."""

    def __init__(self, servers: ServerPair, hub: JetStream, leaf: StreamProbe) -> None:
        self.servers, self.hub, self.leaf = servers, hub, leaf
        self.domain = servers.leaf.domain
        self.sent: list[str] = []

    async def send(self, verb: str, expires: float | None = None, **args: Any) -> str:
        """Send a command; returns its id."""
        ident = f"c-{len(self.sent)}"
        await self.put(verb, Command(ident, args, expires).encode())
        self.sent.append(ident)
        return ident

    async def put(self, verb: str, data: bytes, app: str = "agent") -> None:
        """Send whatever it is."""
        await self.hub.publish(command_subject(self.domain, app, verb), data)

    async def answers(self, count: int, seconds: float = 60.0) -> list[CommandAnswer]:
        """The answers in the leaf's stream, once there are so many, in order."""
        subject = batch_subject(self.domain, CLASS, "commands")
        found: list[CommandAnswer] = []

        async def enough() -> bool:
            found.clear()
            try:
                messages = await self.leaf.messages()
            except JetStreamError:
                return False
            found.extend(one for m in messages if m.subject == subject for one in answers_of(m))
            return len(found) >= count

        await until(enough, f"{count} answers", seconds)
        return found

    async def outcomes(self, count: int, seconds: float = 60.0) -> Mapping[str | None, str]:
        """What became of each command by its id."""
        answers = await self.answers(count, seconds)
        assert len({one.id for one in answers}) == len(answers) == count, answers
        return {one.id: one.outcome.value for one in answers}


def answers_of(message: RawMessage) -> list[CommandAnswer]:
    """The answers in a batch."""
    answers = (answer_in(parse_reading(line)) for line in lines_of(message))
    return [answer for answer in answers if answer is not None]


@asynccontextmanager
async def open_desk(servers: ServerPair) -> AsyncIterator[Desk]:
    """A desk at a hub whose registrar runs as long as the context."""
    hub = await hub_of(servers)
    async with hub.registrar():
        yield Desk(servers, hub.js, await probe_stream(servers.leaf))


def soon(seconds: float = 3600.0) -> float:
    """Epoch seconds after now."""
    return time.time() + seconds


APP: Final = "plc"
PAGE = Path(__file__).parents[2] / "docs" / "commands.md"


def documented(app: str, *, hasty: bool = True) -> Callable[..., Awaitable[None]]:
    """The loop of the document for a program of this name; a `hasty` one does not wait between attempts, so
    that it meets whatever it can meet while the mirror is recreated."""
    (block,) = (
        text for text in PAGE.read_text().split("```python\n") if text.lstrip().startswith("import asyncio")
    )
    source = block.partition("```")[0].replace('"plc"', f'"{app}"').replace(".plc.>", f".{app}.>")
    if hasty:
        source = source.replace("timeout=5", "timeout=0.3").replace("sleep(1)", "sleep(0.01)")
    found: dict[str, Any] = {}
    exec(compile(source, str(PAGE), "exec"), found)
    loop: Callable[..., Awaitable[None]] = found["obey"]
    return loop


class Program:
    """Runs the loop and notes each command that it is handed, when (monotonic seconds) it was handed each
    last and knew each to be acknowledged, and which it was handed again after that, with when it had been
    handed and acknowledged before."""

    def __init__(self, app: str = APP) -> None:
        self.handed: list[str] = []
        self.taken: dict[str, float] = {}
        self.acknowledged: dict[str, float] = {}
        self.again: dict[str, tuple[float, float]] = {}
        self.work: Callable[[Command], Awaitable[object]] | None = None
        self._loop = documented(app)

    async def run(self, nc: Client) -> None:
        """Take commands until cancelled."""
        await self._loop(nc.jetstream(timeout=2), self._take)

    async def got(self, idents: list[str], *, in_order: bool = True, seconds: float = WAIT_SECONDS) -> None:
        """Return when these are what it was handed, and it has acknowledged them all; fails where it was
        handed one that it had acknowledged."""
        lacking = set(idents)

        def enough() -> bool:
            lacking.difference_update(self.acknowledged)
            return not lacking

        await until(enough, f"acknowledged: {lacking}", seconds)
        assert self.again == {}
        handed = list(dict.fromkeys(self.handed))
        assert (handed if in_order else sorted(handed)) == (idents if in_order else sorted(idents))

    async def _take(self, message: Msg) -> None:
        command = parse_command(message.data)
        if command.id in self.acknowledged:
            self.again[command.id] = self.taken[command.id], self.acknowledged[command.id]
        self.handed.append(command.id)
        self.taken[command.id] = time.monotonic()
        if self.work is not None:
            await self.work(command)
        confirm = message.ack_sync

        async def note(timeout: float = 1.0) -> Msg:
            answer = await confirm(timeout)
            self.acknowledged[command.id] = time.monotonic()
            return answer

        message.ack_sync = note  # type: ignore[method-assign]


@asynccontextmanager
async def working(nc: Client, app: str = APP) -> AsyncIterator[Program]:
    """A program that takes commands as long as the context."""
    program = Program(app)
    task = asyncio.create_task(program.run(nc))
    try:
        yield program
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.wait([task])
