"""Subscribes to an MQTT 3.1.1 broker with QoS 1: the input `mqtt`.

Messages are acknowledged in order once the local stream has them; the broker keeps them in the session of a
stable client id. Invalid messages become dead letters and are acknowledged. QoS 0 messages are lost while the
agent is down or the stream is full. Sparkplug B messages are taken in order and held while the stream is
full, so only the broker can lose them, which shows as a gap.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.base.metrics import Metrics
from agent.base.wait import timeout, unless
from agent.config.keys import SeedError
from agent.leaf.inputs.mqtt import MqttOptions, broker, file_problems, problems
from agent.leaf.inputs.mqtt.memory import FilterMemory
from agent.leaf.inputs.mqtt.redelivery import MessageIdentity, Redelivery
from agent.leaf.inputs.mqtt.sorter import MessagePiece, Sorter, identity
from agent.leaf.inputs.shared import NO_SERVER, LocalServer
from agent.leaf.inputs.shared.positioned_input import SessionInput
from agent.leaf.inputs.shared.value_memory import ValueMemory
from agent.leaf.intake import Intake, RefusedError, UnknownOutcomeError

if TYPE_CHECKING:
    from agent.leaf.inputs.mqtt.session import Received, Session
    from agent.leaf.inputs.mqtt.sparkplug.birth_file import BirthFile

_BATCH_MESSAGES: Final = 200
_BATCH_BYTES: Final = 64 * 2**10
_AGAIN_SECONDS: Final = 5.0
"""Time for the broker to resend messages that were being stored at the agent's end."""


class _Begun(NamedTuple):
    """A partly stored piece at the agent's end: its position and messages."""

    position: str
    held: list[MessageIdentity]


class MqttInput(SessionInput[MqttOptions]):
    _source = "broker"
    _connected = "the broker is connected"
    _stored = "messages are stored again"

    def __init__(self, options: MqttOptions, metrics: Metrics, server: LocalServer = NO_SERVER) -> None:
        super().__init__(options, metrics, server, options.url)
        self._redelivery = Redelivery()
        self._begun: _Begun | None = None
        self._whole = True
        """Whether all decoded messages are stored."""
        self._memory = ValueMemory(server.file("mqtt", f"{options.name}.values"), self._log)
        self._filters = FilterMemory(server.file("mqtt", f"{options.name}.filters"), self._log)
        self._births: BirthFile | None = None
        self._sorter = Sorter(options, self._redelivery, self._memory, metrics, self._log)

    def _mistakes(self) -> Iterator[str]:
        return problems(self._options)

    def _obstacles(self) -> Iterator[str]:
        # A broker that does not answer is none.
        return file_problems(self._options)

    async def run(self, intake: Intake, stopping: asyncio.Event) -> None:
        self._intake, self._stopping = intake, stopping
        from agent.leaf.inputs.mqtt.session import BrokerError, Session  # with paho, where it is needed

        self._up.set(0)
        self._memory.load()
        if self._sorter.has_sparkplug:
            await self._load_births()
        await self._restore()
        filters = self._options.filters

        def note_ended() -> None:
            self._filters.note(filters)

        async def hold() -> str:
            session = Session(broker(self._options, intake.domain), self._flows, note_ended)
            earlier = [*self._filters.earlier(), *(topic.filter for topic in self._options.entries)]
            ended = [filter_ for filter_ in dict.fromkeys(earlier) if filter_ not in filters]
            self._filters.note([*filters, *ended])
            async with session.connected(filters, ended):
                self._redelivery.connected(time.monotonic(), resumed=session.resumed)
                return await self._pump(session)

        await self._hold(hold, (BrokerError, SeedError, OSError))
        if self._births is not None and self._whole:
            await asyncio.to_thread(self._births.close)

    async def _load_births(self) -> None:
        from agent.leaf.inputs.mqtt.sparkplug import SparkplugDecoder  # with protobuf, where it is needed
        from agent.leaf.inputs.mqtt.sparkplug.birth_file import BirthFile

        self._births = BirthFile(self._server.file("mqtt", f"{self.name}.births"), self._log)
        await asyncio.to_thread(self._births.load)
        self._sorter.sparkplug = SparkplugDecoder(self._intake.domain, self._births.table)

    async def _restore(self) -> None:
        resume, now = await unless(self._stopping, self._intake.position(self.name)), time.monotonic()
        if resume is None:
            return
        try:
            if resume.position is not None:
                self._redelivery.restore(resume.position, now)
            if resume.until is not None:
                identities = self._redelivery.restore(resume.until, now, begun=True)
                self._begun = _Begun(resume.until, identities)
        except ValueError as error:
            self._log.warning("redelivered messages may be stored twice", reason=str(error))

    async def _pump(self, session: Session) -> str:
        """Store messages until the connection ends, and return why."""
        if self._begun is not None and session.resumed and not await self._go_on(self._begun, session):
            return session.over or "stopping"
        self._begun = None
        while not self._stopping.is_set():
            due = None if self._sorter.sparkplug is None else self._sorter.sparkplug.due()
            batch = await self._next(session, _BATCH_MESSAGES, due)
            if batch:
                await self._handle(batch, None, session)
            elif session.over is not None:
                return session.over
            elif due is not None and (piece := self._sorter.decided()).lines:
                self._whole &= await self._store(piece, None)
                self._save_births()
        return "stopping"

    def _save_births(self) -> None:
        if self._births is not None:
            self._births.save()

    async def _next(self, session: Session, count: int, due: float | None = None) -> list[Received]:
        """Return up to `count` waiting messages, none at the end or when `due`."""
        messages = await unless(self._stopping, session.next(count, _BATCH_BYTES, due)) or []
        for message in messages:
            if message.qos:
                self._redelivery.heard(identity(message))
        return messages

    async def _go_on(self, begun: _Begun, session: Session) -> bool:
        """Resubmit the partly stored piece when the broker resends it; False at an end before."""
        batch: list[Received] = []
        left = len(begun.held)
        try:
            async with timeout(_AGAIN_SECONDS):
                while left > 0 and session.over is None and not self._stopping.is_set():
                    messages = await self._next(session, left)
                    batch += messages
                    left = len(begun.held) - len(self._sorter.stored_messages(batch, self._news(batch)))
        except TimeoutError:
            pass
        is_cut = left > 0 and (session.over is not None or self._stopping.is_set())
        if self._sorter.has_sparkplug and not is_cut:
            # What Sparkplug says depends on births, which are not known any more.
            await self._handle(batch, None, session)
            return True
        await self._handle([message for message in batch if not message.qos], None, session)
        if not is_cut:
            await self._handle([message for message in batch if message.qos], begun, session)
        return not is_cut

    async def _handle(self, batch: list[Received], begun: _Begun | None, session: Session) -> None:
        """Store and acknowledge messages; unhandled ones return later."""
        while batch:
            part = self._sorter.sort(batch, self._news(batch), self._intake.domain)
            taken, batch = batch[: part.taken], batch[part.taken :]
            for command in part.commands:
                session.publish(*command)
            if part.lossy.lines and await self._try(part.lossy):
                self._memory.remember(part.lossy.values)
            if part.piece.lines:
                is_safe = await self._store(part.piece, begun)
            else:
                is_safe = not any(message.qos for message in taken) or await self._reach()
            if not is_safe:
                self._whole = False  # messages were decoded that are not stored
                return
            self._memory.remember(part.piece.values)
            self._save_births()
            for message in taken:
                if session.acknowledge(message):
                    self._redelivery.acknowledged()

    def _news(self, batch: list[Received]) -> list[bool]:
        return [self._is_new(message) for message in batch]

    def _is_new(self, message: Received) -> bool:
        return not (message.qos and message.repeat and self._redelivery.is_stored(identity(message)))

    async def _store(self, piece: MessagePiece, begun: _Begun | None) -> bool:
        """Submit a piece until stored; False when stopping. A `begun` piece continues by its position."""
        identities = [identity(message) for message in piece.messages if message.qos]
        if begun is not None and identities == begun.held:
            position = begun.position
        else:
            position = self._redelivery.position(secrets.token_hex(4), identities, time.monotonic())
        is_stored = await self._submit(piece.chunk(position))
        if is_stored:
            for message in identities:
                self._redelivery.store(message, time.monotonic())
        return is_stored

    async def _try(self, piece: MessagePiece) -> bool:
        """Submit QoS 0 messages once; returns whether stored."""
        cls = self._options.class_
        try:
            if piece.count:
                await self._intake.submit(self.name, cls, piece.chunk())
            if piece.letters:
                await self._intake.dead_letter(self.name, cls, piece.letters)
        except RefusedError as refusal:
            self._storing.begin(f"what came with QoS 0 is dropped: {refusal}")
            return False
        except UnknownOutcomeError as error:
            self._storing.begin(str(error))
            return False
        return True
