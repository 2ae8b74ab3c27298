"""The input `mqtt`: subscribes to a broker of MQTT 3.1.1 with QoS 1.

A message is acknowledged to the broker after the local stream has acknowledged it, in order; until then the
broker has it, also while this agent is down, for its client id is stable and its session is kept. The payload
is a bare value in JSON, a reading, or an object whose members are values. What is none of these becomes a
dead letter and is then acknowledged, for the broker would send it for ever. What devices published with
QoS 0 arrives with QoS 0: it is stored like the others, but lost while this agent is down or the stream is
full.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from agent import contract
from agent.base.clock import wall_ns
from agent.base.metrics import Metrics
from agent.base.wait import unless
from agent.config.keys import SeedError
from agent.contract import Letter
from agent.leaf.inputs.formats import split_valid
from agent.leaf.inputs.formats.message import MessageError, message_lines
from agent.leaf.inputs.mqtt import MqttOptions, broker, file_problems, names_of_topic, problems
from agent.leaf.inputs.mqtt.redelivery import MessageIdentity, Redelivery, are_same_messages, identity_of
from agent.leaf.inputs.shared import NO_SERVER, LocalServer
from agent.leaf.inputs.shared.session_input import SessionInput
from agent.leaf.intake import Chunk, Intake, RefusedError, UnknownOutcomeError

if TYPE_CHECKING:
    from agent.leaf.inputs.mqtt.session import Received, Session

_BATCH_MESSAGES: Final = 200
_BATCH_BYTES: Final = 64 * 2**10
_AGAIN_SECONDS: Final = 5.0
"""How long the broker is given to send again what was being stored when the agent ended."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Messages that are submitted together, as lines and letters."""

    messages: list[Received]
    payload: bytes
    count: int
    letters: tuple[Letter, ...]


class _Begun(NamedTuple):
    """A piece of which parts were stored when the agent ended: its position, and its messages."""

    position: str
    held: list[MessageIdentity]


class MqttInput(SessionInput[MqttOptions]):
    """Stores what one broker sends."""

    def __init__(self, options: MqttOptions, metrics: Metrics, server: LocalServer = NO_SERVER) -> None:
        super().__init__(
            options,
            metrics,
            server,
            source="broker",
            url=options.url,
            connected="the broker is connected",
            stored="messages are stored again",
        )
        self._redelivery = Redelivery()
        self._begun: _Begun | None = None

    def _mistakes(self) -> list[str]:
        return problems(self._options)

    def _obstacles(self) -> list[str]:
        # A broker that does not answer is none.
        return file_problems(self._options)

    async def run(self, intake: Intake, stopping: asyncio.Event) -> None:
        """Take and store messages until `stopping` is set."""
        from agent.leaf.inputs.mqtt.session import BrokerError, Session  # with paho, where it is needed

        self._up.set(0)
        await self._restore(intake, stopping)

        async def hold() -> str:
            session = Session(broker(self._options, intake.domain), self._flows)
            async with session.connected([topic.filter for topic in self._options.topics]):
                self._redelivery.connected(time.monotonic(), resumed=session.resumed)
                return await self._pump(session, intake, stopping)

        await self._hold(hold, (BrokerError, SeedError, OSError), stopping)

    async def _restore(self, intake: Intake, stopping: asyncio.Event) -> None:
        resume, now = await unless(stopping, intake.position(self.name)), time.monotonic()
        if resume is None:
            return
        try:
            if resume.position is not None:
                self._redelivery.restore(resume.position, now)
            if resume.until is not None:
                identities = self._redelivery.restore(resume.until, now, begun=True)
                self._begun = _Begun(resume.until, identities)
        except ValueError as error:
            self._log.warning("what the broker sends again may be stored twice", reason=str(error))

    async def _pump(self, session: Session, intake: Intake, stopping: asyncio.Event) -> str:
        """Store what comes until the connection is over, and say why it is."""
        if self._begun is not None and session.resumed:
            await self._go_on(self._begun, session, intake, stopping)
        self._begun = None
        while not stopping.is_set():
            batch = await self._next(session, stopping, _BATCH_MESSAGES)
            if batch:
                await self._handle(batch, None, session, intake, stopping)
            elif session.over is not None:
                return session.over
        return "stopping"

    async def _next(self, session: Session, stopping: asyncio.Event, count: int) -> list[Received]:
        """The messages that wait, at most so many; none when the connection is over or the agent stops."""
        messages = await unless(stopping, session.next(count, _BATCH_BYTES)) or []
        for message in messages:
            if message.qos:
                self._redelivery.heard(_ident(message))
        return messages

    async def _go_on(self, begun: _Begun, session: Session, intake: Intake, stopping: asyncio.Event) -> None:
        """Submit the piece again of which parts are stored, when the broker sends it as it was."""
        batch: list[Received] = []
        left = len(begun.held)
        try:
            async with asyncio.timeout(_AGAIN_SECONDS):
                while left > 0 and session.over is None and not stopping.is_set():
                    messages = await self._next(session, stopping, left)
                    batch += messages
                    left -= sum(1 for message in messages if self._is_new(message))
        except TimeoutError:
            pass
        same = are_same_messages([_ident(message) for message in batch if self._is_new(message)], begun.held)
        if batch and not stopping.is_set():
            await self._handle(batch, begun.position if same else None, session, intake, stopping)

    async def _handle(
        self,
        batch: list[Received],
        position: str | None,
        session: Session,
        intake: Intake,
        stopping: asyncio.Event,
    ) -> None:
        """Store messages and acknowledge them. What is left when the agent stops comes again."""
        while batch:
            fitting, batch = self._fitting(batch)
            lossy = self._sort([message for message in fitting if not message.qos], intake.domain)
            if lossy.messages:
                await self._try(lossy, intake)
            piece = self._sort(
                [message for message in fitting if message.qos and self._is_new(message)], intake.domain
            )
            if piece.messages and not await self._store(piece, position, intake, stopping):
                return
            for message in fitting:
                if session.acknowledge(message):
                    self._redelivery.acknowledged()

    def _fitting(self, batch: list[Received]) -> tuple[list[Received], list[Received]]:
        """So many messages as certainly make no more lines than a piece may have, at least one."""
        lines = 0
        for index, message in enumerate(batch):
            lines += 1 + message.payload.count(b",")
            if index and lines > contract.MAX_BATCH_READINGS:
                return batch[:index], batch[index:]
        return batch, []

    def _is_new(self, message: Received) -> bool:
        return not (message.qos and message.repeat and self._redelivery.is_stored(_ident(message)))

    def _sort(self, messages: list[Received], domain: str) -> _Piece:
        """Take messages apart into lines and letters."""
        lines: list[bytes] = []
        letters: list[Letter] = []
        count, now = 0, wall_ns()
        for message in messages:
            if message.qos and not message.repeat:
                self._redelivery.note(_ident(message))
            names = names_of_topic(self._options.topics, message.topic)
            if len(message.payload) > contract.MAX_BATCH_BYTES:
                self._refuse(message, "too_large", f"longer than {contract.MAX_BATCH_BYTES} bytes", letters)
            elif names is None:
                # Of a subscription of an earlier configuration, which the broker still keeps.
                self._refuse(message, "bad_topic", "no filter covers its topic any more", letters)
            else:
                try:
                    parsed = split_valid(b"\n".join(message_lines(message.payload, names)), domain, now)
                except MessageError as error:
                    self._refuse(message, "bad_message", str(error), letters)
                    continue
                if parsed.bad:
                    self._refuse(message, "bad_message", parsed.bad[0][1], letters)
                lines.append(parsed.payload)
                count += parsed.count
        return _Piece(messages, b"".join(lines), count, tuple(letters))

    async def _store(
        self, piece: _Piece, position: str | None, intake: Intake, stopping: asyncio.Event
    ) -> bool:
        """Submit a piece until it is stored; False when the agent stops before."""
        identities = [_ident(message) for message in piece.messages]
        if position is None:
            position = self._redelivery.position(secrets.token_hex(4), identities, time.monotonic())
        chunk = Chunk(piece.payload, piece.count, position=position, letters=piece.letters)
        is_stored = await self._submit(chunk, intake, stopping)
        if is_stored:
            for message in identities:
                self._redelivery.store(message, time.monotonic())
        return is_stored

    async def _try(self, piece: _Piece, intake: Intake) -> None:
        """Submit what came with QoS 0 once: the broker does not have it any more."""
        cls = self._options.class_
        try:
            if piece.count:
                await intake.submit(self.name, cls, Chunk(piece.payload, piece.count))
            if piece.letters:
                await intake.dead_letter(self.name, cls, piece.letters)
        except RefusedError as refusal:
            self._storing.begin(f"what came with QoS 0 is dropped: {refusal}")
        except UnknownOutcomeError as error:
            self._storing.begin(str(error))

    def _refuse(self, message: Received, reason: str, text: str, letters: list[Letter]) -> None:
        letters.append(Letter(message.payload, message.topic, text))
        self._invalid.labels(self.name, reason).inc()
        held_back = self._sparse.held_back(time.monotonic())
        if held_back is not None:
            self._log.warning(
                "message not taken", topic=message.topic[:200], reason=text, not_reported_before=held_back
            )


def _ident(message: Received) -> MessageIdentity:
    return identity_of(message.packet_id, message.topic, message.payload)
