"""Commands by hand: sent at the hub, their answers read from the leaf's stream or the hub's aggregate."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from agent.contract import Command, CommandAnswer, answer_in, batch_subject, command_subject, parse_reading
from agent.jetstream import JetStream, JetStreamError, RawMessage
from agent.testing.stored_stream import lines_of
from tests.harness.agents import CLASS, StreamProbe, probe_stream
from tests.harness.registrar import hub_of
from tests.harness.servers import ServerPair
from tests.harness.wait import until


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
