"""Stores QoS 0 messages to this leaf's own MQTT listener: the input `qos0`, present when `[nats.mqtt]` has
users.

The server stores QoS 1 and 2 itself. QoS 0 messages are lost while the agent is down; excess ones are dropped
and counted; invalid ones become dead letters.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Coroutine, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, NamedTuple

import structlog
from msgspec import Struct, field
from nats.aio.msg import Msg

from agent import contract
from agent.base.clock import wall_ns
from agent.base.logs import LogEdge, Sparse
from agent.base.metrics import Metrics
from agent.base.wait import event_within
from agent.contract import Letter
from agent.jetstream.connection import EXPECTED, OpenConnection, connected
from agent.leaf.inputs.formats import split_valid
from agent.leaf.inputs.formats.message import MessageError, TopicNames, reading_line
from agent.leaf.intake import Chunk, Intake, RefusedError, UnknownOutcomeError

MAX_WAITING_BYTES: Final = 4 * 2**20
_OVERHEAD: Final = 256
"""Assumed bytes of a message beside its payload."""
_CHUNK_BYTES: Final = 128 * 2**10
_CHUNK_MESSAGES: Final = contract.MAX_BATCH_READINGS
_AGAIN_SECONDS: Final = 1.0
_NO_TOPIC: Final = "not readings/<class>/<device>/<metric>"


class Qos0Message(NamedTuple):
    """The kept parts of a message."""

    subject: str
    data: bytes


class ClassGroup(Struct):
    """Messages of one class with their lines and dead letters."""

    messages: list[Qos0Message] = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)
    letters: list[Letter] = field(default_factory=list)


class Qos0Input:
    """Reads QoS 0 messages of the server at `listen` with the agent's seed."""

    def __init__(self, listen: str, seed_file: Path, classes: Sequence[str], metrics: Metrics) -> None:
        self._url, self._seed_file, self._classes = f"nats://{listen}", seed_file, tuple(classes)
        self._invalid = metrics.invalid
        self._waiting: deque[Qos0Message] = deque()
        self._bytes = 0
        self._arrived = asyncio.Event()
        log = structlog.get_logger("qos0")
        self._log = log
        self._connecting = LogEdge(log, "what MQTT devices send with QoS 0 is heard again")
        self._storing = LogEdge(log, "what MQTT devices send with QoS 0 is stored again")
        self._sparse = Sparse()

    @property
    def name(self) -> str:
        """The name in batch subjects and metrics."""
        return contract.QOS0_INPUT

    async def run(self, intake: Intake, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            try:
                async with connected(self._url, self._seed_file, intake.domain) as link:
                    await link.nc.subscribe("readings.>", cb=self._take)
                    self._connecting.end()
                    while not stopping.is_set() and not link.nc.is_closed:
                        await self._next(link, stopping)
                        await self._store(intake)
            except EXPECTED as error:
                self._connecting.begin(f"what MQTT devices send with QoS 0 is not heard: {error}")
            await event_within(stopping, _AGAIN_SECONDS)

    async def _take(self, message: Msg) -> None:
        if (message.headers or {}).get(contract.H_MQTT) != "0":
            # The server stores it, unless no stream has its subject. It then never answers.
            match message.subject.split("."):
                case [_, cls, _, _] if cls in self._classes:
                    return
            self._drop(message.subject, "bad_topic", _NO_TOPIC)
            return
        size = len(message.data) + _OVERHEAD
        if self._bytes + size > MAX_WAITING_BYTES:
            self._drop(message.subject, "overflow", "it came faster than it could be stored")
            return
        self._waiting.append(Qos0Message(message.subject, message.data))
        self._bytes += size
        self._arrived.set()

    async def _next(self, link: OpenConnection, stopping: asyncio.Event) -> None:
        """Wait for a message or the end."""
        waits = [asyncio.create_task(task) for task in (self._arrived.wait(), link.ended(), stopping.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()

    async def _store(self, intake: Intake) -> None:
        """Store gathered messages, a chunk per class."""
        by_class: dict[str, ClassGroup] = {}
        size = count = 0
        while self._waiting and size < _CHUNK_BYTES and count < _CHUNK_MESSAGES:
            message = self._waiting.popleft()
            self._bytes -= len(message.data) + _OVERHEAD
            size, count = size + len(message.data), count + 1
            self._sort(message, by_class)
        if not self._waiting:
            self._arrived.clear()
        for cls, group in by_class.items():
            parsed = split_valid(b"\n".join(group.lines), intake.domain, wall_ns())
            starts = list(accumulate((len(line) + 1 for line in group.lines), initial=0))
            for offset, reason in parsed.bad:
                self._refuse(
                    group.messages[bisect_left(starts, offset)], "bad_message", reason, group.letters
                )
            if parsed.count:
                await self._submit(intake.submit(self.name, cls, Chunk(parsed.payload, parsed.count)))
            if group.letters:
                await self._submit(intake.dead_letter(self.name, cls, group.letters))

    def _sort(self, message: Qos0Message, by_class: dict[str, ClassGroup]) -> None:
        match message.subject.split("."):
            case [_, cls, device, _] if cls in self._classes and device.startswith("_"):
                # With QoS 1 and 2, and over NATS, the hub finds the same.
                group = by_class.setdefault(cls, ClassGroup())
                self._refuse(
                    message, "bad_topic", "a device that begins with _ is the agent's own", group.letters
                )
            case [_, cls, device, metric] if cls in self._classes:
                group = by_class.setdefault(cls, ClassGroup())
                names = TopicNames(contract.mqtt_text(device), contract.mqtt_text(metric))
                try:
                    group.lines.append(reading_line(message.data, names, fixed=True))
                    group.messages.append(message)
                except MessageError as error:
                    self._refuse(message, "bad_message", str(error), group.letters)
            case _:
                group = by_class.setdefault(self._classes[0], ClassGroup())
                self._refuse(message, "bad_topic", _NO_TOPIC, group.letters)

    def _refuse(self, message: Qos0Message, reason: str, text: str, letters: list[Letter]) -> None:
        self._drop(message.subject, reason, text)
        letters.append(Letter(message.data, message.subject, text))

    async def _submit(self, submission: Coroutine[Any, Any, None]) -> None:
        try:
            await submission
        except RefusedError as refusal:
            self._storing.begin(f"what MQTT devices send with QoS 0 is dropped: {refusal}")
        except UnknownOutcomeError as error:
            self._storing.begin(str(error))
        else:
            self._storing.end()

    def _drop(self, subject: str, reason: str, text: str) -> None:
        self._invalid.labels(self.name, reason).inc()
        self._sparse.report(self._log.warning, "MQTT message dropped", subject=subject, reason=text)
