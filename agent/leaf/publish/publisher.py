"""Takes chunks from inputs and queues sealed drafts.

Unsettled chunks count against a byte budget, for which `submit` waits. Waits end after `PATIENCE` seconds:
unsent chunks are withdrawn and refused, sent ones have an unknown outcome. Chunks acknowledged as accepted
stay until the server returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from agent.base.clock import Look
from agent.base.metrics import Metrics
from agent.base.wait import loop_time, timeout_at
from agent.contract import Request
from agent.leaf.acks import HubAckWaiters, store_lost
from agent.leaf.intake import (
    Chunk,
    Level,
    NotAtHubError,
    RefusalReason,
    RefusedError,
    Settled,
    UnknownOutcomeError,
)
from agent.leaf.ledger import ClassLedger, ReadingAccounts
from agent.leaf.publish.accumulator import BatchLimits, Key, PendingChunk
from agent.leaf.publish.idempotency import RequestLog
from agent.leaf.publish.limits import Admission, ByteBudget, stopping
from agent.leaf.publish.send_queue import Batches
from agent.leaf.publish.settlement import Answers, Deadlines, PendingAnswer, Settlement

PATIENCE = 10.0
_NOTHING = Chunk(b"", 0)
_NOT_RECALLED = "what the agent stored under this key before it was started again is not known yet"

_Pending = PendingChunk[Settlement]


class Publisher:
    """Gathers chunks into drafts in `queue`, and settles them by the sender's reports.

    `levels` has inputs' levels other than `stored`; `hub` knows the hub's progress.
    """

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
        """Classes whose stream was full: acknowledged only once stored."""
        self._budget = ByteBudget(in_flight)
        self._deadlines, self._answers = Deadlines(), Answers()
        self.admission = Admission(refusal)
        self.batches = Batches(limits, clock)
        self.queue = self.batches.queue
        self.stores_lost = 0
        """Number of store losses."""
        self.requests = RequestLog()
        metrics.in_flight.set_function(lambda: self._budget.used)
        metrics.known_requests.set_function(lambda: self.requests.count(loop_time()))
        self.recalled = asyncio.Event()
        """Set once stored keys are recovered; keyed requests wait for it."""

    async def submit(self, input_name: str, cls: str, chunk: Chunk) -> None:
        entry = PendingChunk(chunk, Settlement())
        key = (input_name, cls)
        known: Settlement | None = None
        level = self._levels.get(input_name, "stored")
        early = level == "accepted" and chunk.position is None and self.admission.fits(chunk)
        deadline = loop_time() + PATIENCE
        try:
            known = await self._take_in(key, entry, early, deadline)
            if early and cls not in self._full and self._promise(cls, entry, known):
                return
            outcome = await self._outcome_of(known or entry.waiter, deadline)
        except TimeoutError:
            outcome = self._give_up(key, entry, joined=known is not None)
        except RefusedError as refusal:
            self._count_refused(key, entry, refusal)
            raise
        finally:
            if not entry.admitted and chunk.on_settled is not None:
                chunk.on_settled(None)
        if outcome is not None:
            try:
                # One outcome may go to many waiters: it must not gather the frames of all of them.
                raise outcome.with_traceback(None)
            finally:
                # It refers to this frame. If that referred to it, the chunk would stay in memory until Python
                # looks for circles, which what has lived for seconds waits long for.
                del outcome, entry, known
        if level == "hub":
            repeated = None if known is None else chunk.request
            for held_by in [cls] if repeated is None else self.requests.classes_of(repeated):
                if repeated is not None and self.requests.is_doubtful(held_by, repeated):
                    raise store_lost()
                if held_by not in self._ledgers:
                    raise NotAtHubError(
                        f"it is stored here in class {held_by}, which is no longer configured"
                    )
                await self._hub.wait(held_by, deadline)

    def hand_in(self, input_name: str, cls: str, chunk: Chunk, settled: Settled) -> bool:
        level = self._levels.get(input_name, "stored")
        size = len(chunk.payload)
        if level != "stored" or chunk.request is not None or not self._budget.take(size):
            return False
        key, entry = (input_name, cls), PendingChunk(chunk, Settlement())
        try:
            self.admission.check_store(cls, early=False)
            self.admission.check_chunk(input_name, chunk)
        except RefusedError as refusal:
            self._budget.release(size)
            self._count_refused(key, entry, refusal)
            if chunk.on_settled is not None:
                chunk.on_settled(None)
            raise
        self._gather(key, entry)
        answer = PendingAnswer(self._answers, settled, partial(self._give_up, key, entry, joined=False))
        entry.waiter.answer(answer)
        self._deadlines.add(loop_time() + PATIENCE, answer)
        return True

    async def knows(self, request: Request) -> bool:
        """Tell whether part of a request is in flight or stored. Raises `UnknownOutcomeError` if keys are not
        recovered in time.
        """
        if not self.requests.classes_of(request):
            try:
                async with timeout_at(loop_time() + PATIENCE):
                    await self.recalled.wait()
            except TimeoutError:
                raise UnknownOutcomeError(_NOT_RECALLED) from None
        return bool(self.requests.classes_of(request))

    async def _outcome_of(self, settlement: Settlement, deadline: float) -> Exception | None:
        """Wait for a chunk's outcome. Raises `TimeoutError`."""
        if settlement.done():
            return settlement.result()
        wait = settlement.wait(asyncio.get_running_loop())
        self._deadlines.add(deadline, wait)
        try:
            return await wait
        except BaseException:
            settlement.leave(wait)
            del wait  # its error holds this frame, and through it the chunk
            raise

    async def _take_in(self, key: Key, entry: _Pending, early: bool, deadline: float) -> Settlement | None:
        """Add a chunk to the open batch, or return a known request's settlement. Raises `TimeoutError`."""
        chunk = entry.chunk
        if chunk.request is None:
            self.admission.check_store(key[1], early=early)
            self.admission.check_chunk(key[0], entry.chunk)
            if self._budget.take(len(chunk.payload)):
                self._gather(key, entry)
                return None
        async with timeout_at(deadline):
            known = None if chunk.request is None else await self._claim(entry, chunk.request, key[1], early)
            if known is None:
                await self._admit(key, entry)
        return known

    async def reach(self, input_name: str, classes: Iterable[str]) -> None:
        """Wait until stored data of these classes is at the input's level. Raises `NotAtHubError`."""
        if self._levels.get(input_name) != "hub":
            return
        deadline = loop_time() + PATIENCE
        for cls in classes:
            await self._hub.wait(cls, deadline)

    def end_waits(self) -> None:
        """End overdue waits of senders."""
        self._deadlines.sweep(loop_time())

    def store_lost(self, cls: str) -> None:
        """Note a lost or restored store."""
        self.requests.doubt(cls)
        self._hub.lost(cls)
        self.stores_lost += 1

    def _promise(self, cls: str, entry: _Pending, known: Settlement | None) -> bool:
        """Acknowledge a chunk in memory; False if it, or its key's request, is settled or may be refused."""
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

    async def _claim(self, entry: _Pending, request: Request, cls: str, early: bool) -> Settlement | None:
        """Return a known request's settlement, None if new. The lookup precedes any refusal, which says that
        nothing is stored.
        """
        known = None
        try:
            known = self.requests.find(cls, request, entry.waiter, loop_time())
        except RefusedError as refusal:
            if refusal.reason is not RefusalReason.KEY_INCOMPLETE or self.recalled.is_set():
                raise  # until the stream was read, other classes may have their parts unknown to the agent
        if known is None and not self.recalled.is_set():
            try:
                self.admission.check_store(cls, early=early)
            except RefusedError as refusal:
                raise UnknownOutcomeError(f"{refusal}, and {_NOT_RECALLED}") from None
            await self.recalled.wait()
            known = self.requests.find(cls, request, entry.waiter, loop_time())
        if known is not None:
            return known
        self.admission.check_store(cls, early=early)
        return self.requests.claim(cls, request, entry.waiter, loop_time())

    def stored(self, key: Key, entry: _Pending, seq: int) -> None:
        """Settle a chunk stored at a sequence."""
        self.balance.store(key, entry.chunk.count, dead=entry.chunk.dead)
        self.settle(key[1], entry, None, seq)

    def refuse(self, key: Key, entry: _Pending, refusal: RefusedError) -> None:
        self._count_refused(key, entry, refusal)
        self.settle(key[1], entry, refusal)

    def _count_refused(self, key: Key, entry: _Pending, refusal: RefusedError) -> None:
        count, admitted, promised = entry.chunk.count, entry.admitted, entry.promised
        self.balance.refuse(key, count, refusal, admitted=admitted, promised=promised)

    def settle(self, cls: str, entry: _Pending, outcome: Exception | None, seq: int | None = None) -> None:
        """Settle a chunk (None: stored) and release its bytes, key and waiter."""
        if entry.held:
            self._budget.release(entry.held)
            entry.held = 0
        request = entry.chunk.request
        if request is not None and outcome is None:
            self.requests.store(cls, request, loop_time())
        elif request is not None and isinstance(outcome, RefusedError):
            self.requests.forget(cls, request, entry.waiter)
        if entry.chunk.on_settled is not None:
            entry.chunk.on_settled(seq)
        if not entry.waiter.done():
            entry.waiter.set_result(outcome)
        self.batches.settled(entry)

    def stream_full(self, cls: str) -> None:
        """Stop early acknowledgements of a class until it stores again."""
        self._full.add(cls)

    def stream_stores(self, cls: str) -> None:
        """Resume early acknowledgements."""
        self._full.discard(cls)

    def stop(self) -> None:
        """Refuse new chunks and seal the present ones."""
        self.admission.stopping = True
        self._hub.stop()
        self.batches.flush()

    async def _admit(self, key: Key, entry: _Pending) -> None:
        """Add a chunk to the open batch once memory allows."""
        if entry.chunk.request is not None:
            try:
                self.admission.check_chunk(key[0], entry.chunk)
            except RefusedError as refusal:
                self.refuse(key, entry, refusal)
                return
        try:
            await self._budget.acquire(len(entry.chunk.payload))
        except asyncio.CancelledError:
            busy = "more is in flight than memory is set aside for"
            entry.withdrawn = True
            self.refuse(key, entry, RefusedError(RefusalReason.BUSY, busy))
            raise
        if self.admission.stopping:
            self._budget.release(len(entry.chunk.payload))
            self.refuse(key, entry, stopping())
            return
        self._gather(key, entry)

    def _gather(self, key: Key, entry: _Pending) -> None:
        entry.held = len(entry.chunk.payload)
        entry.admitted = True
        self.balance.accept(key, entry.chunk.count)
        self.batches.add(key, entry)

    def _give_up(self, key: Key, entry: _Pending, *, joined: bool) -> Exception | None:
        if entry.chunk.request is not None and not self.recalled.is_set():
            return UnknownOutcomeError(_NOT_RECALLED)
        if not joined and not entry.sent and not entry.waiter.done():
            entry.withdrawn = True
            away = "the local NATS server has not taken it in time"
            self.refuse(key, entry, RefusedError(RefusalReason.UNAVAILABLE, away))
            self.queue.drop_withdrawn()
            # Behind others that wait for the server it may stay in the queue for long.
            entry.chunk = _NOTHING
        if entry.waiter.done() and not joined:
            return entry.waiter.result()
        return UnknownOutcomeError(
            "the local NATS server has not answered; whether it is stored is not known yet"
        )
