"""The publish path between senders and a modelled stream, and what holds of it whatever happens: who was told
what, and what the stream has ever stored.

Accumulator, publisher, sender, ledger, account and waits for the hub are the real ones; the seam is the
connection (`stream.Wire`), which a scenario delays, cuts, doubles and reorders. Not modelled is the one known
limit: data that a hung connection delivers after the same batch was refused over a newer one. What a
server reads only after the duplicate window, since it hung so long, it stores a second time under the same
number: that is dropped at the table, and allowed here.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from agent.base.clock import Instant
from agent.base.metrics import Metrics
from agent.contract import H_MESSAGE_ID, H_POSITION, Clock, make_request, request_scope
from agent.jetstream import RawMessage, UnavailableError
from agent.leaf.acks import HubAckWaiters
from agent.leaf.events import BatchStored, ConnectionStuck, Events
from agent.leaf.intake import Chunk, Level, RefusedError, UnknownOutcomeError
from agent.leaf.ledger import ClassLedger
from agent.leaf.publish.accumulator import BatchLimits
from agent.leaf.publish.limits import Lingers
from agent.leaf.publish.publisher import Publisher
from agent.leaf.publish.sender import Sender
from tests.unit.models import promises
from tests.unit.models.promises import CLASSES, MOST_BATCHES, MOST_BYTES
from tests.unit.models.stream import Mood, Stream, Wire, own_id
from tests.unit.models.virtual_clock import VirtualClock

DOMAIN, RUN = "edge-1", "01a1fd89-9817-7b93-a754-e595539c3d06"
SCOPE = request_scope("stored")
LEVELS: dict[str, Level] = {"accepted": "accepted", "stored": "stored", "hub": "hub", "pull": "accepted"}


@dataclass
class Handed:
    """A chunk that was handed in: its lines, and what its sender was told (None: nothing yet)."""

    input: str
    cls: str
    lines: tuple[str, ...]
    size: int
    task: asyncio.Task[None]
    told: str | None = None
    at: float = 0.0


@dataclass
class PublishScenario:
    """One run of the publish path, its streams and all that was told."""

    time: VirtualClock = field(default_factory=VirtualClock)
    handed: list[Handed] = field(default_factory=list)
    streams: dict[str, Stream] = field(default_factory=lambda: {cls: Stream() for cls in CLASSES})
    wire: Wire | None = None
    old: Wire | None = None
    proven: set[str] = field(default_factory=set)
    at_hub: set[str] = field(default_factory=set)
    sent: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    ident_of: dict[str, str] = field(default_factory=dict)
    acks: Counter[str] = field(default_factory=Counter)
    notified: Counter[tuple[str, ...]] = field(default_factory=Counter)
    position: int = 0
    trouble: str | None = None
    stopped: bool = False
    losses: int = 0
    look_takes: float = 0.0
    looks_fail: int = 0
    linger: float = 0.1
    batches_per_second: float = 1000.0

    def __post_init__(self) -> None:
        self._names, self._lines = itertools.count(1), itertools.count(1)
        self._keyed: dict[tuple[str, str, int], tuple[str, ...]] = {}
        self._seen_as: dict[str, tuple[int, int]] = dict.fromkeys(CLASSES, (1, 0))
        self.metrics = Metrics()
        self.ledgers = {cls: ClassLedger(DOMAIN, cls, RUN) for cls in CLASSES}
        self.time.run(self._begin())
        self.time.each_turn(lambda: promises.check_account(self))

    async def _begin(self) -> None:
        self.waits = HubAckWaiters(lambda cls: f"the link of {cls} is down")
        self.publisher = Publisher(
            BatchLimits(200, 6, Lingers(default=self.linger), self.batches_per_second, credit=1.0),
            MOST_BYTES,
            self.metrics,
            lambda _: self.trouble,
            ledgers=self.ledgers,
            levels=LEVELS,
            clock=_look,
            hub=self.waits,
        )
        self.publisher.recalled.set()
        events = Events()
        events.on(BatchStored, self._stored)
        events.on(ConnectionStuck, self._stuck)
        self.sender = Sender(
            self.publisher,
            self.ledgers,
            domain=DOMAIN,
            run=RUN,
            window=MOST_BATCHES,
            metrics=self.metrics,
            events=events,
        )
        self.time.spawn(self.sender.run())
        self.time.spawn(self.sender.run_retries())
        self.time.spawn(self.sender.run_checks())

    # what senders do

    def hand_in(
        self, input_name: str, cls: str, count: int, *, wide: bool = False, key: tuple[str, int] | None = None
    ) -> None:
        """Hand in a chunk of so many readings; `key` is an idempotency key and which of its bodies."""
        lines = self._keyed.get((cls, *key)) if key else None
        if lines is None:
            lines = tuple(str(next(self._lines)) for _ in range(count))
        if key is not None:
            self._keyed[cls, *key] = lines
        payload = _payload(lines, wide=wide)
        request = make_request(f"key-{key[0]}", SCOPE, payload) if key else None
        self._submit(
            input_name, cls, lines, Chunk(payload, len(lines), request, on_settled=self._notice(lines))
        )

    def dead_letter(self, cls: str, count: int) -> None:
        """Hand in dead letters."""
        lines = tuple(str(next(self._lines)) for _ in range(count))
        chunk = Chunk(_payload(lines), count, dead=True, on_settled=self._notice(lines))
        self._submit("stored", cls, lines, chunk)

    def pull(self, count: int) -> None:
        """A pull input goes on behind the last of its batches that is stored."""
        cls = CLASSES[0]
        positions = [int(one.headers.get(H_POSITION, 0)) for one in self.streams[cls].held]
        first = max(self.position, *positions, 0) + 1
        lines = tuple(f"pulled-{at}" for at in range(first, first + count))
        chunk = Chunk(_payload(lines), count, position=str(first + count - 1), on_settled=self._notice(lines))
        self._submit("pull", cls, lines, chunk)

    @property
    def pull_may_go_on(self) -> bool:
        """Whether the pull input was answered and none of its batches is in flight."""
        in_flight = any(one.input == "pull" for one in self.sender._in_flight)
        waits = any(one.input == "pull" and one.told is None for one in self.handed)
        return self.wire is not None and not in_flight and not waits

    def leave(self, which: int) -> None:
        """A sender that waits gives up."""
        waiting = [one for one in self.handed if one.told is None and one.input != "pull"]
        if waiting:
            waiting[which % len(waiting)].task.cancel()
            self.time.passes()

    def _submit(self, input_name: str, cls: str, lines: tuple[str, ...], chunk: Chunk) -> None:
        store = self.publisher.submit if len(self.handed) % 2 else self._hand_in
        task = self.time.spawn(store(input_name, cls, chunk))
        one = Handed(input_name, cls, lines, len(chunk.payload), task)
        self.handed.append(one)
        task.add_done_callback(lambda _: self._hear(one))
        self.time.passes()

    async def _hand_in(self, input_name: str, cls: str, chunk: Chunk) -> None:
        """As an input does that needs no task for most chunks."""
        outcome: asyncio.Future[Exception | None] = self.time.loop.create_future()

        def settled(error: Exception | None) -> None:
            if not outcome.done():  # its sender may have left
                outcome.set_result(error)

        if not self.publisher.hand_in(input_name, cls, chunk, settled):
            await self.publisher.submit(input_name, cls, chunk)
        elif (error := await outcome) is not None:
            raise error

    def _hear(self, one: Handed) -> None:
        one.at = self.time.now
        if one.task.cancelled():
            one.told = "nothing"
            return
        error = one.task.exception()
        if error is None:
            one.told = "accepted" if LEVELS[one.input] == "accepted" and one.input != "pull" else "stored"
        else:
            assert isinstance(error, RefusedError | UnknownOutcomeError), repr(error)
            one.told = "refused" if isinstance(error, RefusedError) else "nothing"

    def _notice(self, lines: tuple[str, ...]) -> Any:
        return lambda seq: self.notified.update([lines] if seq is not None else [])

    # what the server and the network do

    def stream_of(self, subject: str) -> Stream:
        """The stream that takes a subject."""
        return self.streams[subject.split(".")[2]]

    def reads(self, count: int, *, answer: bool = True) -> None:
        """The server reads what comes next."""
        if self.wire is not None:
            self._look_at(self.wire)
            self.wire.reads(count, self.stream_of, self.time.now, answer=answer)

    def answer_comes(self, which: int = 0, times: int = 1) -> None:
        """One of the answers comes so often."""
        if self.wire is not None and self.wire.answers:
            self._come(self.wire, which, times)

    def old_answer_comes(self, which: int) -> None:
        """What an ended connection had received is handed over late."""
        if self.old is not None and self.old.answers:
            self._come(self.old, which, 1)

    def _come(self, wire: Wire, which: int, times: int) -> None:
        reply, data = wire.answers[which % len(wire.answers)]
        ident = self.ident_of.get(reply, "")
        said = json.loads(data) if times and data else {"seq": 0}
        if said["seq"] and not said.get("duplicate"):
            self.proven.add(ident)
        self.time.run(wire.answers_come(which, times))
        self.time.passes()

    def flows(self) -> None:
        """All that is under way arrives."""
        self.reads(10**6)
        while self.wire is not None and self.wire.answers:
            self.answer_comes()

    def cut(self, read: int = 0) -> None:
        """The connection ends; the server had still read so much."""
        self.time.run(self._call(lambda: self._cut(read)))

    def _cut(self, read: int) -> None:
        if self.wire is not None:
            self._look_at(self.wire)
            self.wire.reads(read, self.stream_of, self.time.now)
            self.old, self.wire = self.wire, None
            ended = self.session.__aexit__(None, None, None)
            with contextlib.suppress(StopIteration):
                ended.send(None)

    def _stuck(self, _stuck: ConnectionStuck) -> None:
        self.time.loop.call_soon(self._cut, 0)

    def connect(self, late: int = 0) -> None:
        """A new connection; the server reads so much of the old one after the look at the streams."""
        if self.wire is None:
            self.time.run(self._connect(late))
            self.time.passes()

    async def _connect(self, late: int) -> None:
        stored: dict[tuple[str, str], int] = {}
        last: dict[str, int] = {}
        for cls, stream in self.streams.items():
            last[cls] = len(stream.held)
            created, losses = self._seen_as[cls]
            if (created, losses) != (stream.created, self.losses):
                self._seen_as[cls] = (stream.created, self.losses)
                self.waits.reached(cls, 0)
                self.publisher.store_lost(cls)
                self.sender.store_lost(cls)
            if (floor := self.sender.floor(cls)) is not None:
                stored |= stream.ids_above(floor)
            self.waits.began(cls, last[cls])
        if self.old is not None:
            self.old.reads(late, self.stream_of, self.time.now)
            self.old.asked = []
        self.proven |= {ident for _, ident in stored}
        self.wire = Wire(f"_INBOX.{next(self._names)}")
        self.session = self.sender.connected(
            self.wire,  # type: ignore[arg-type]
            self.wire.inbox,
            last,
            stored,
            self._look_for,
        )
        await self.session.__aenter__()

    async def _look_for(self, cls: str, seq: int) -> RawMessage | None:
        message, held = self.streams[cls].message(seq), self.streams[cls].held[seq - 1 : seq]
        self.proven |= {ident for one in held if (ident := own_id(one)) is not None}
        if self.look_takes:
            await asyncio.sleep(self.look_takes)
        self.looks_fail -= 1
        if self.wire is None or self.looks_fail >= 0:
            raise UnavailableError("JetStream did not answer")
        return message

    def hub_takes(self, cls: str, share: float) -> None:
        """The hub holds the first part of a stream, and says so."""
        seq = int(share * len(self.streams[cls].held))
        stream = self.streams[cls]
        self.at_hub |= {ident for _, ident in stream.ids_above(0).keys() - stream.ids_above(seq).keys()}
        if self.wire is not None:
            self.time.loop.call_soon(self.waits.reached, cls, seq)
        self.time.passes()

    def device_publishes(self, cls: str, count: int) -> None:
        """A device publishes by itself."""
        for _ in range(count):
            self.streams[cls].take(f"tel.{DOMAIN}.{cls}.d.m", b"1", {}, self.time.now)

    def device_forges(self, cls: str, first: int, last: int) -> None:
        """A device publishes under ids of batches of this run: of those whose numbers are so far from the
        last one that was given out."""
        for n in range(first, last + 1):
            if (number := self.ledgers[cls].n + n) > 0:
                ident = {H_MESSAGE_ID: f"{RUN}-{cls}-{number}"}
                self.streams[cls].take(f"tel.{DOMAIN}.{cls}.d.m", b"1", ident, self.time.now)

    def lose_store(self, cls: str, left: float) -> None:
        """While nobody is connected the store is wiped (0) or put back to so large a part of it."""
        if self.wire is not None:
            return
        if self.old is not None:
            self.old.asked = []
        self.losses += 1
        stream = self.streams[cls]
        stream.put_back(int(left * len(stream.held))) if left else stream.wipe()

    def stop(self) -> None:
        """The agent stops: nothing new is taken, the rest is sent."""
        self.time.run(self._call(self.publisher.stop))

    def abandon(self) -> None:
        """The agent ends."""
        self.stopped = True
        self.time.run(self._call(self.sender.abandon))
        self.time.passes()
        assert all(one.told is not None for one in self.handed), "everybody is told at the end"

    async def _call(self, what: Any) -> None:
        what()

    def _stored(self, batch: BatchStored) -> None:
        self.acks[str(batch.id)] += 1
        if batch.position is not None:
            self.position = int(batch.position)
        self.waits.stored(batch.id.cls, batch.seq, str(batch.id))

    # what must hold

    def _look_at(self, wire: Wire) -> None:
        """Every attempt of a batch is the same message, and a number belongs to one batch."""
        for one in wire.asked:
            ident = one.headers[H_MESSAGE_ID]
            what = (one.subject, one.payload, tuple(sorted(one.headers.items())))
            assert self.sent.setdefault(ident, what) == what, f"{ident} is sent as two messages"
            self.ident_of[one.reply] = ident

    def ends_well(self) -> None:
        """Let the server and the network be well: everybody is told, and nothing is left."""
        self.trouble = None
        for stream in self.streams.values():
            stream.mood = Mood.WELL
        for _ in range(60):
            if not self.stopped:
                self.connect()
            self.time.passes(3.0)
            self.flows()
            for cls in CLASSES:
                self.hub_takes(cls, 1.0)
        drained = self.time.spawn(self.sender.drained())
        self.time.passes()
        assert drained.done() or self.stopped, "all that was taken in is settled"
        promises.check_end(self)


def _look() -> Instant:
    return Instant(10**18, Clock(True, "boot", 10**9))


def _payload(lines: tuple[str, ...], *, wide: bool = False) -> bytes:
    return b"".join(
        f"{line} {random.Random(line).randbytes(1500 if wide else 4).hex()}\n".encode() for line in lines
    )
