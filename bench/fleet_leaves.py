"""Leaves for a fleet of thousands in one process: each has its own connection and announces itself as an
agent does, in full when something is new and by the name of the exchange while nothing is.

A `SmallLeaf` has no server: it speaks to the hub's as one would, and answers for the consumer of its only
class, which is idle, so that the registrar lets its source rest.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field, replace
from typing import Any, Final

from agent.base.clock import machine
from agent.contract import (
    DEFAULT_CLASS,
    Announce,
    Answer,
    Checkpoint,
    ClassState,
    CommandsWanted,
    Previous,
    Readings,
    Repeat,
    announce_subject,
    api_prefix,
    deliver_subject,
    inbox_prefix,
    leaf_stream,
    link_consumer,
    new_epoch,
    new_run,
    parse_answer,
    parse_repeat,
)
from agent.hub.registrar.records import ClassRecord, LeafRecord
from agent.jetstream import StreamInfo
from bench.fleet_wire import LinkKey, Wire

_EVERY: Final = 10.0
_JOINING_SECONDS: Final = 3600.0
"""So rarely it announces itself by its first record: its source would be woken if it were silent before all
are linked."""
_ANSWER_SECONDS: Final = 5.0
UNANSWERED_SECONDS: Final = 2.0
"""What an agent waits between two announcements while the hub does not answer."""
_ATTEMPTS: Final = 5
_RECONNECT_SECONDS: Final = 1.0
_HEARTBEAT: Final = b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: %d\r\nNats-Last-Stream: %d\r\n\r\n"
_IDENTITY: Final = b"NATS/1.0\r\nNats-Stream-Identity: small\r\n\r\n"
_CREATED: Final = "2026-01-01T00:00:00.000000001Z"


@dataclass(slots=True)
class Counted:
    sent: int = 0
    repeats: int = 0
    answered: int = 0
    refused: int = 0
    timed_out: int = 0
    slowest: float = 0.0
    """The longest time to an answer, in seconds."""
    reasons: dict[str, int] = field(default_factory=dict)


class AnnouncingLeaf:
    commands_idle = False

    def __init__(self, key: LinkKey, machine: str, counted: Counted) -> None:
        self.key, self.domain, self.machine, self._counted = key, key.domain, machine, counted
        self.epoch, self.run = new_epoch(), new_run()
        self.stream = leaf_stream(self.domain, DEFAULT_CLASS)
        self.state = ClassState(
            self.epoch, _CREATED, 1, 0, 0, 0, Previous(self.run, 0, Readings(), False), None, idle=True
        )
        self.checkpoint: dict[str, Checkpoint] = {}
        self._commands = CommandsWanted(new_epoch(), 0, (), self.commands_idle)
        self.answered_at = 0.0
        """When the hub last answered, in seconds since 1970."""
        self.classes_state = ""
        self.silent = False
        """Whether its agent says nothing, while its server goes on."""
        self._newest: tuple[Announce, Answer] | None = None
        self._asked: tuple[Announce, float] | None = None
        self._next: asyncio.TimerHandle | None = None
        self._inbox = f"{inbox_prefix(self.domain)}.a"
        self.reachable = True
        self.wire: Wire

    def begin(self, after: float) -> None:
        """Announce from so many seconds on."""
        self._later(after)

    def received(self, subject: str, reply: str, body: bytes) -> None:
        """Take what came over the wire."""
        if subject == self._inbox and self._asked is not None:
            self._answer(body)

    def _announce(self) -> Announce:
        return Announce(
            self.domain,
            self.machine,
            self.run,
            {"agent": "0.1.0", "nats-server": "2.15.1", "python": "3.11.7"},
            {DEFAULT_CLASS: self.state},
            self.checkpoint,
            "synchronised=yes",
            self._commands,
            False,
            _EVERY,
        )

    def _say(self) -> None:
        self._asked = None
        if self.silent:
            self._later(UNANSWERED_SECONDS)
            return
        if not self.wire.open or not self.reachable:
            self._unreachable()
            return
        announce = self._announce()
        newest = self._newest
        repeats = newest is not None and newest[0] == announce
        data = Repeat(newest[1].exchange).encode() if newest and repeats else announce.encode()
        self._counted.sent += 1
        self._counted.repeats += repeats
        if not repeats:
            self._newest = None
        self._asked = (announce, time.monotonic())
        self.wire.publish(announce_subject(self.domain), data, self._inbox)
        self._later(_ANSWER_SECONDS, self._unanswered)

    def _unreachable(self) -> None:
        """No registrar hears this leaf. As an agent does, it announces in full once there is one."""
        self._newest = None
        self._later(UNANSWERED_SECONDS)

    def _unanswered(self) -> None:
        self._counted.timed_out += 1
        self._newest = None
        self._later(UNANSWERED_SECONDS - 1.0)

    def _answer(self, body: bytes) -> None:
        assert self._asked is not None
        (announce, asked), self._asked = self._asked, None
        self._counted.slowest = max(self._counted.slowest, time.monotonic() - asked)
        if parse_repeat(body) is not None:
            self._counted.answered += 1
            self.answered_at = time.time()
            self._later(_EVERY)
            return
        answer = parse_answer(body)
        if answer.refused is not None:
            self._counted.refused += 1
            reason = answer.refused.replace(self.domain, "a leaf")[:90]
            self._counted.reasons[reason] = self._counted.reasons.get(reason, 0) + 1
            again, self._newest = self._newest is not None, None
            self._later(0.0 if again else UNANSWERED_SECONDS)
            return
        self._counted.answered += 1
        self.answered_at = time.time()
        self._newest = (announce, answer) if answer.exchange else None
        self.classes_state = answer.classes[DEFAULT_CLASS].state
        self._compare(answer)
        self._later(_EVERY)

    def _compare(self, answer: Answer) -> None:
        said = answer.classes[DEFAULT_CLASS]
        self.state = replace(self.state, confirmed=said.cursor)
        if said.checkpoint is not None:
            self.checkpoint = {DEFAULT_CLASS: said.checkpoint}

    def _later(self, seconds: float, what: Any = None) -> None:
        if self._next is not None:
            self._next.cancel()
        self._next = asyncio.get_running_loop().call_later(seconds, what or self._say)


class SmallLeaf(AnnouncingLeaf):
    """A leaf of this process alone."""

    commands_idle = True
    _flows = ""
    _beat: asyncio.TimerHandle | None = None

    async def connect(self, hub: int) -> None:
        """Link to the hub. Raises `OSError` or `TimeoutError` after some attempts: a server of thousands of
        links cuts one now and then while they join, and a leaf tries again."""
        self.reachable = False
        for attempt in range(_ATTEMPTS):
            wire = Wire(self.received, key=self.key)
            wire.interest = self._interest
            try:
                await Wire.connect(hub, wire)
                break
            except OSError:
                if attempt == _ATTEMPTS - 1:
                    raise
                await asyncio.sleep(_RECONNECT_SECONDS)
        self.serve(wire)

    def serve(self, wire: Wire) -> None:
        """Answer for its stream over a link that is up."""
        self.wire, wire.interest = wire, self._interest
        wire.subscribe(f"{api_prefix(self.domain)}.CONSUMER.RESET.{self.stream}.*")
        wire.subscribe(self._inbox)

    def received(self, subject: str, reply: str, body: bytes) -> None:
        if ".CONSUMER.RESET." in subject:
            self.wire.publish(
                reply, self._consumer(), headers=b"NATS/1.0\r\nNats-Stream-Identity: small\r\n\r\n"
            )
        else:
            super().received(subject, reply, body)

    def _interest(self, subject: str, wanted: bool) -> None:
        """What the hub wants to hear, or no more."""
        if subject.startswith("petiole.v1.announce."):
            self.reachable = wanted
        elif subject == deliver_subject(self.domain, DEFAULT_CLASS, self.epoch):
            self._flows = subject if wanted else ""
            if self._beat is not None:
                self._beat.cancel()
            if wanted:
                self._heartbeat()

    def _heartbeat(self) -> None:
        if self._flows and self.wire.open:
            self.wire.publish(self._flows, b"", headers=_HEARTBEAT % (0, 0))
            self._beat = asyncio.get_running_loop().call_later(1.0, self._heartbeat)

    def record(self, aggregate: StreamInfo, server: str) -> LeafRecord:
        """What the registrar stores of it while its source rests, dropped by a server."""
        record = ClassRecord(
            self.epoch,
            _CREATED,
            aggregate.name,
            aggregate.created,
            unsure=True,
            rests=server,
            boot=machine.boot,
        )
        return LeafRecord(
            self.domain,
            self.machine,
            self.run,
            {"agent": "0.1.0"},
            "2026-01-01T00:00:00+00:00",
            {DEFAULT_CLASS: record},
            {DEFAULT_CLASS: self.state},
            _JOINING_SECONDS,
        )

    def _consumer(self) -> bytes:
        nothing = {"consumer_seq": 0, "stream_seq": 0}
        answer = {
            "type": "io.nats.jetstream.api.v1.consumer_reset_response",
            "stream_name": self.stream,
            "name": link_consumer(self.epoch),
            "created": _CREATED,
            "config": {**consumer(self.domain, self.epoch), "num_replicas": 0, "max_deliver": -1},
            "delivered": nothing,
            "ack_floor": nothing,
            "num_ack_pending": 0,
            "num_redelivered": 0,
            "num_waiting": 0,
            "num_pending": 0,
            "ts": _CREATED,
            "reset_seq": 1,
        }
        return json.dumps(answer).encode()


def consumer(domain: str, epoch: str) -> dict[str, Any]:
    """The link consumer of a leaf's only class."""
    return {
        "name": link_consumer(epoch),
        "durable_name": link_consumer(epoch),
        "deliver_policy": "all",
        "replay_policy": "instant",
        "ack_policy": "flow_control",
        "max_ack_pending": 10_000,
        "flow_control": True,
        "idle_heartbeat": 1_000_000_000,
        "deliver_subject": deliver_subject(domain, DEFAULT_CLASS, epoch),
    }
