"""The intake side of the publish path: from a chunk that an input hands in to a queue of sealed drafts.

All that is accepted and not yet settled counts against one budget of bytes, for which `submit` waits: so
backpressure reaches the input. Every wait ends after `PATIENCE` seconds: a chunk that was not sent by then is
withdrawn and refused, one that was sent is of unknown outcome to its sender, and the sender of the batch goes
on trying. A chunk that was acknowledged as accepted is not withdrawn: it waits, within the budget, for as
long as the server is unreachable.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from agent.base.clock import Look
from agent.base.metrics import Metrics
from agent.base.wait import loop_time
from agent.contract import AGENT_INPUT, COMMANDS_INPUT, MAX_UNPACKED_BYTES
from agent.leaf.hub_acks import HubAckWaiters, store_lost
from agent.leaf.intake import Chunk, Level, RefusalReason, RefusedError, UnknownOutcomeError
from agent.leaf.ledger.ledger import ClassLedger, ReadingAccounts
from agent.leaf.publish.accumulator import (
    Accumulator,
    BatchLimits,
    Key,
    OpenBatch,
    PendingChunk,
    SealedBatch,
    SendQueue,
)
from agent.leaf.publish.idempotency import RequestLog, Settlement
from agent.leaf.publish.limits import ByteBudget, RateLimit

PATIENCE = 10.0
_NOTHING = Chunk(b"", 0)
_OWN = frozenset({AGENT_INPUT, COMMANDS_INPUT})
_NOT_RECALLED = "what the agent stored under this key before it was started again is not known yet"
AWAY_GRACE = 3.0
"""How long a lost local server is waited for before chunks are refused at once."""

_Pending = PendingChunk[Settlement]


class Publisher:
    """Takes chunks in, lets them gather into drafts, and settles them when the sender says what became of
    them. `levels` gives the level of an input where that is not `stored`; `hub` knows what the hub holds.
    What is sealed waits in `queue`."""

    def __init__(
        self,
        limits: BatchLimits,
        in_flight: int,
        metrics: Metrics,
        refusal: Callable[[str], str | None],
        *,
        ledgers: Mapping[str, ClassLedger],
        levels: Mapping[str, Level],
        clock: Look,
        hub: HubAckWaiters,
    ) -> None:
        self._hub = hub
        self._ledgers, self._levels = ledgers, levels
        self.balance = ReadingAccounts(metrics, ledgers)
        self._full: set[str] = set()
        """Classes whose stream had no room for the last batch: they are acknowledged only once stored."""
        self._accumulator: Accumulator[Settlement] = Accumulator(limits)
        self._budget = ByteBudget(in_flight)
        self._metrics = metrics
        self.refusal = refusal
        """Why the stream of a class stores nothing now, None while it is not known not to."""
        self._clock = clock
        self._rate = RateLimit()
        self._stopping = False
        self._away_since: float | None = loop_time()
        self.queue = SendQueue()
        self.stores_lost = 0
        """How often that happened to one of the stores."""
        self.requests = RequestLog()
        metrics.known_requests.set_function(lambda: self.requests.count(time.monotonic()))
        self.recalled = asyncio.Event()
        """Set once the keys that the stream's tail holds are known again; requests with a key wait for it."""

    async def submit(self, input_name: str, cls: str, chunk: Chunk) -> None:
        """Store a chunk, as `Intake.submit` says."""
        loop = asyncio.get_running_loop()
        entry: _Pending = PendingChunk(chunk, loop.create_future())
        key = (input_name, cls)
        known: Settlement | None = None
        level = self._levels.get(input_name, "stored")
        early = level == "accepted" and chunk.position is None
        deadline = loop.time() + PATIENCE
        try:
            async with asyncio.timeout_at(deadline):
                known = await self._claim(entry, cls, early)
                if known is None:
                    await self._admit(key, entry)
                if early and cls not in self._full and self._promise(cls, entry, known):
                    return
                outcome = await asyncio.shield(known or entry.waiter)
        except TimeoutError:
            outcome = self._give_up(key, entry, joined=known is not None)
        except RefusedError as refusal:
            self._count_refused(key, entry, refusal)
            raise
        finally:
            if not entry.admitted and chunk.on_settled is not None:
                chunk.on_settled(None)
        if outcome is not None:
            # One outcome may go to many waiters: it must not gather the frames of all of them.
            raise outcome.with_traceback(None)
        if level == "hub":
            request = chunk.request
            if known is not None and request is not None and self.requests.is_doubtful(cls, request):
                raise store_lost()
            await self._hub.wait(cls, deadline)

    def store_lost(self, cls: str) -> None:
        """The store of a class was lost or restored from a backup: what it held is unknown."""
        self.requests.doubt(cls)
        self._hub.lost(cls)
        self.stores_lost += 1

    def _promise(self, cls: str, entry: _Pending, known: Settlement | None) -> bool:
        """Acknowledge a chunk that is in memory; False where its fate, or that of the request under its key,
        is settled already, or where that request may still be refused."""
        request = entry.chunk.request
        if (known or entry.waiter).done():
            return False
        if known is not None:
            return request is not None and self.requests.is_promised(cls, request)
        entry.promised = True
        self._ledgers[cls].accept(entry.chunk.count)
        if request is not None:
            self.requests.promise(cls, request)
        return True

    async def _claim(self, entry: _Pending, cls: str, early: bool) -> Settlement | None:
        """What became of the request under the key of a chunk, None where it is new. A refusal says that
        nothing is stored, so the key is looked up before there can be one."""
        request = entry.chunk.request
        if request is None:
            self._refuse_at_once(cls, loop_time(), early)
            return None
        known = self.requests.find(cls, request, entry.waiter, loop_time())
        if known is None and not self.recalled.is_set():
            try:
                self._refuse_at_once(cls, loop_time(), early)
            except RefusedError as refusal:
                raise UnknownOutcomeError(f"{refusal}, and {_NOT_RECALLED}") from None
            await self.recalled.wait()
            known = self.requests.find(cls, request, entry.waiter, loop_time())
        if known is not None:
            return known
        self._refuse_at_once(cls, loop_time(), early)
        return self.requests.claim(cls, request, entry.waiter, loop_time())

    def stored(self, key: Key, entry: _Pending, seq: int) -> None:
        """A chunk was acknowledged by the stream, which holds it at a sequence."""
        self.balance.store(key, entry.chunk.count, dead=entry.chunk.dead)
        self.settle(key[1], entry, None, seq)

    def refuse(self, key: Key, entry: _Pending, refusal: RefusedError) -> None:
        """A chunk is not stored and will not be."""
        self._count_refused(key, entry, refusal)
        self.settle(key[1], entry, refusal)

    def _count_refused(self, key: Key, entry: _Pending, refusal: RefusedError) -> None:
        count, admitted, promised = entry.chunk.count, entry.admitted, entry.promised
        self.balance.refuse(key, count, refusal, admitted=admitted, promised=promised)

    def settle(self, cls: str, entry: _Pending, outcome: Exception | None, seq: int | None = None) -> None:
        """The fate of a chunk of a class is known: None is stored. Its room, key and waiter are let go."""
        self._release(entry)
        request = entry.chunk.request
        if request is not None and outcome is None:
            self.requests.store(cls, request, loop_time())
        elif request is not None and isinstance(outcome, RefusedError):
            self.requests.forget(cls, request, entry.waiter)
        if entry.chunk.on_settled is not None:
            entry.chunk.on_settled(seq)
        if not entry.waiter.done():
            entry.waiter.set_result(outcome)

    def stream_full(self, cls: str) -> None:
        """The stream of a class has no room: until it stores again, nothing is acknowledged before that."""
        self._full.add(cls)

    def stream_stores(self, cls: str) -> None:
        """The stream of a class stores again."""
        self._full.discard(cls)

    def server_back(self) -> None:
        """The local server takes batches."""
        self._away_since = None

    def server_away(self) -> None:
        """The local server takes none: chunks that wait go on waiting, later ones are refused after
        `AWAY_GRACE`."""
        self._away_since = loop_time()

    def flush(self) -> int:
        """Seal what has come, without waiting for more; returns how many drafts that are."""
        drafts = self._accumulator.flush()
        self._enqueue(drafts)
        return len(drafts)

    def stop(self) -> None:
        """Refuse what comes from now on and seal what has come."""
        self._stopping = True
        self._hub.stop()
        self.flush()

    def _refuse_at_once(self, cls: str, now: float, early: bool) -> None:
        if self._stopping:
            raise RefusedError(RefusalReason.STOPPING, "the agent is stopping", 5.0)
        if not early and self._away_since is not None and now - self._away_since > AWAY_GRACE:
            raise RefusedError(RefusalReason.UNAVAILABLE, "the local NATS server does not answer", 5.0)
        if (why := self.refusal(cls)) is not None:
            raise RefusedError(RefusalReason.UNAVAILABLE, why, 5.0)

    def set_linger(self, seconds: float) -> None:
        """How long a batch waits for more readings from now on."""
        self._accumulator.linger(seconds)

    def limit_rate(self, readings_per_second: float | None) -> None:
        """Take in no more than this, None for no limit; what the agent itself says is exempt."""
        self._rate.limit(readings_per_second)

    async def _admit(self, key: Key, entry: _Pending) -> None:
        loop = asyncio.get_running_loop()
        if (size := len(entry.chunk.payload)) > MAX_UNPACKED_BYTES:
            most = f"a batch has {MAX_UNPACKED_BYTES} at most; send fewer readings"
            text = f"the readings are {size} bytes with time and device, {most}"
            self.refuse(key, entry, RefusedError(RefusalReason.TOO_LARGE, text))
            return
        if key[0] not in _OWN and (wait := self._rate.take(entry.chunk.count, loop.time())) > 0:
            limited = "more readings come in than a command allows for the time being"
            self.refuse(key, entry, RefusedError(RefusalReason.RATE, limited, wait))
            return
        try:
            await self._budget.acquire(len(entry.chunk.payload))
        except asyncio.CancelledError:
            busy = "more is in flight than memory is set aside for"
            entry.withdrawn = True
            self.refuse(key, entry, RefusedError(RefusalReason.BUSY, busy, 1.0))
            raise
        if self._stopping:
            self._budget.release(len(entry.chunk.payload))
            self.refuse(key, entry, RefusedError(RefusalReason.STOPPING, "the agent is stopping", 5.0))
            return
        entry.held = len(entry.chunk.payload)
        entry.admitted = True
        self.balance.accept(key, entry.chunk.count)
        self._metrics.in_flight.set(self._budget.used)
        opened = self._accumulator.due(key)
        self._enqueue(self._accumulator.add(key, entry, loop.time()))
        due = self._accumulator.due(key)
        if due is not None and due != opened:
            loop.call_at(due, self._linger_over, key, due)

    def _linger_over(self, key: Key, due: float) -> None:
        draft = self._accumulator.seal(key, due)
        if draft is not None:
            self._enqueue([draft])

    def _enqueue(self, drafts: list[OpenBatch[Settlement]]) -> None:
        now = loop_time()
        instants = [self._clock() for _ in drafts]
        self.queue.put(
            SealedBatch(draft, instant.wall, instant.clock, now)
            for draft, instant in zip(drafts, instants, strict=True)
        )

    def _give_up(self, key: Key, entry: _Pending, *, joined: bool) -> Exception | None:
        if entry.chunk.request is not None and not self.recalled.is_set():
            return UnknownOutcomeError(_NOT_RECALLED)
        if not joined and not entry.sent and not entry.waiter.done():
            entry.withdrawn = True
            away = "the local NATS server has not taken it in time"
            self.refuse(key, entry, RefusedError(RefusalReason.UNAVAILABLE, away, 5.0))
            self.queue.drop_withdrawn()
            # Behind others that wait for the server it may stay in the queue for long.
            entry.chunk = _NOTHING
        if entry.waiter.done() and not joined:
            return entry.waiter.result()
        return UnknownOutcomeError(
            "the local NATS server has not answered; whether it is stored is not known yet"
        )

    def _release(self, entry: _Pending) -> None:
        if entry.held:
            self._budget.release(entry.held)
            entry.held = 0
            self._metrics.in_flight.set(self._budget.used)

    def held(self, cls: str) -> int:
        """The readings of a class that were not sent yet, counted one by one."""
        drafts = (draft for draft in self._accumulator.drafts() if draft.cls == cls)
        return self.queue.readings(cls) + sum(draft.live_readings for draft in drafts)
