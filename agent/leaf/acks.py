"""Defines the acknowledgement levels of inputs, and waits for the hub at level `hub`.

Waits know sequences but no connection; others report stored batches, the hub's progress and store losses.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import structlog
from nats.aio.client import Client
from nats.errors import Error as NatsError

from agent import contract
from agent.base.wait import Backoff, timeout_at
from agent.contract import H_MESSAGE_ID, Checkpoint, ContractError, CursorAnswer, CursorRequest
from agent.jetstream import JetStream, JetStreamError, request
from agent.leaf.intake import Level, NotAtHubError
from agent.leaf.state_file import StateFile
from agent.server.health import ServerHealth

_KNOWN_IDS: Final = 1_000


class HubAckWaiters:
    """Waits of all classes. Equal waits are shared, and abandoned ones leave nothing.

    `sentence(cls)` describes the class's link. `wanted` is set while any submission waits.
    """

    def __init__(self, sentence: Callable[[str], str]) -> None:
        self._sentence = sentence
        self._stored: dict[str, int] = {}
        self._reached: dict[str, int] = {}
        self._ids: dict[str, dict[int, str]] = {}
        self._waits: dict[str, dict[int, asyncio.Future[NotAtHubError | None]]] = {}
        self._waiting: dict[asyncio.Future[NotAtHubError | None], int] = {}
        self._stopping = False
        self.wanted = asyncio.Event()

    async def wait(self, cls: str, deadline: float) -> None:
        """Wait until the hub holds everything stored of a class now.

        Raises `NotAtHubError` at the deadline (monotonic seconds), at the agent's stop, or after a store
        loss.
        """
        seq = self._stored.get(cls, 0)
        if seq <= self._reached.get(cls, 0):
            return
        if self._stopping:
            raise self._not_yet(cls, "the agent is stopping")
        waits = self._waits.setdefault(cls, {})
        outcome = waits.get(seq)
        if outcome is None:
            outcome = waits[seq] = asyncio.get_running_loop().create_future()
        self._waiting[outcome] = self._waiting.get(outcome, 0) + 1
        self.wanted.set()
        try:
            async with timeout_at(deadline):
                error = await asyncio.shield(outcome)
        except TimeoutError:
            error = self._not_yet(cls, self._sentence(cls))
        finally:
            self._leave(cls, seq, outcome)
        if error is not None:
            try:
                raise error.with_traceback(None)
            finally:
                del error, outcome  # it refers to this frame, as in `Publisher.submit`

    def stored(self, cls: str, seq: int, message_id: str) -> None:
        """Note a stored batch."""
        self._stored[cls] = max(self._stored.get(cls, 0), seq)
        ids = self._ids.setdefault(cls, {})
        if len(ids) >= _KNOWN_IDS:
            del ids[next(iter(ids))]
        ids[seq] = message_id

    def began(self, cls: str, last: int) -> None:
        """Note a new connection and a class's last sequence."""
        self._stored[cls] = min(self._stored.get(cls, last), last)

    def id_at(self, cls: str, seq: int) -> str | None:
        """Return the batch id at a sequence, or None."""
        return self._ids.get(cls, {}).get(seq)

    def classes(self) -> list[str]:
        """Return the classes with waits."""
        return [cls for cls, waits in self._waits.items() if waits]

    def reached(self, cls: str, seq: int) -> bool:
        """End waits up to a sequence that the hub holds; tells whether there were any."""
        self._reached[cls] = seq
        done = [reached_seq for reached_seq in self._waits.get(cls, ()) if reached_seq <= seq]
        for reached_seq in done:
            self._finish(cls, reached_seq, None)
        return bool(done)

    def lost(self, cls: str) -> None:
        """Fail the waits of a class whose store was lost or restored."""
        self._ids.pop(cls, None)
        for seq in list(self._waits.get(cls, ())):
            self._finish(cls, seq, store_lost())

    def stop(self) -> None:
        """End all waits; the readings are stored here."""
        self._stopping = True
        for cls, waits in self._waits.items():
            for seq in list(waits):
                self._finish(cls, seq, self._not_yet(cls, "the agent is stopping"))

    def _finish(self, cls: str, seq: int, error: NotAtHubError | None) -> None:
        self._waits[cls].pop(seq).set_result(error)

    def _leave(self, cls: str, seq: int, outcome: asyncio.Future[NotAtHubError | None]) -> None:
        self._waiting[outcome] -= 1
        if not self._waiting[outcome]:
            del self._waiting[outcome]
            if self._waits[cls].get(seq) is outcome:
                del self._waits[cls][seq]
        if not self._waiting:
            self.wanted.clear()

    def _not_yet(self, cls: str, why: str) -> NotAtHubError:
        return NotAtHubError(f"the readings are stored on this machine, and not yet at the hub: {why}")


def store_lost() -> NotAtHubError:
    """Return the error for readings whose place is unknown after a store loss."""
    return NotAtHubError(
        "the store of this machine was lost or restored from a backup after the readings were stored; "
        "whether the hub holds them is unknown",
        lost=True,
    )


SOONEST: Final = 0.02
"""Seconds between requests while answers end waits; otherwise the pause doubles."""
LONGEST: Final = 1.0
_ANSWER_SECONDS: Final = 2.0


class HubCursorPoller:
    """Asks the hub for its progress while a submission waits, by a small request at a bounded rate.

    `agreed(cls)` returns the epoch if link and both sides are in order; only then a position proves all
    before it.
    """

    def __init__(
        self,
        domain: str,
        run: str,
        state: StateFile,
        waits: HubAckWaiters,
        agreed: Callable[[str], str | None],
        announce: Callable[[], None],
    ) -> None:
        self._domain, self._run, self._state = domain, run, state
        self._waits, self._agreed, self._announce = waits, agreed, announce
        self._over: tuple[Client, JetStream] | None = None

    @contextlib.contextmanager
    def connected(self, nc: Client, js: JetStream) -> Iterator[None]:
        """Use this connection within the scope."""
        self._over = (nc, js)
        try:
            yield
        finally:
            self._over = None

    async def run(self) -> None:
        """Ask while a submission waits, until cancelled."""
        while True:
            await self._waits.wanted.wait()
            backoff = Backoff(SOONEST, LONGEST)
            while self._waits.wanted.is_set():
                if await self._once():
                    backoff.reset()
                await asyncio.sleep(backoff.next())

    async def _once(self) -> bool:
        """Ask once; returns whether waits ended."""
        epochs = {cls: epoch for cls in self._waits.classes() if (epoch := self._agreed(cls)) is not None}
        if self._over is None or not epochs:
            return False
        nc, js = self._over
        answer = await self._ask(nc, epochs)
        if answer is None:
            # A hub that does not know this request, or does not permit it, still takes announcements.
            self._announce()
            return False
        ended = False
        for cls, position in answer.held.items():
            if epochs.get(cls) == self._agreed(cls) and await self._is_ours(js, cls, position):
                ended |= self._waits.reached(cls, position.leaf_seq)
        return ended

    async def _ask(self, nc: Client, epochs: dict[str, str]) -> CursorAnswer | None:
        cursor_request = CursorRequest(self._state.current.machine, self._run, epochs)
        try:
            reply = await request(
                nc, contract.cursor_subject(self._domain), cursor_request.encode(), _ANSWER_SECONDS
            )
            answer = contract.parse_cursor_answer(reply.data)
        except (NatsError, OSError, TimeoutError, ContractError):
            return None
        return answer if answer.refused is None else None

    async def _is_ours(self, js: JetStream, cls: str, position: Checkpoint) -> bool:
        message_id = self._waits.id_at(cls, position.leaf_seq)
        if message_id is None:
            try:
                stream = contract.leaf_stream(self._domain, cls)
                message = await js.get_message(stream, seq=position.leaf_seq)
            except JetStreamError:
                return False
            message_id = None if message is None else message.headers.get(H_MESSAGE_ID)
        return message_id == position.message_id


_LOOK_SECONDS: Final = 2.0
_FIRST_LOOKS: Final = 5
"""Looks after which the level counts as unknown."""

log = structlog.get_logger("acknowledgement")


def meaning(level: Level, synced: bool | None, hub_seconds: float = 0.0) -> str:
    """Describe a level. `synced` tells whether the server syncs before acks (None: unknown); `hub_seconds` is
    the hub's sync interval, 0 for before acks.
    """
    if level == "accepted":
        return "in this agent's memory: a crash or a stop without the server loses it"
    if synced:
        stored = "in the local stream, synced to disk: it survives a power cut"
    elif synced is None:
        stored = "in the local stream; whether that is synced to disk is not known"
    else:
        stored = "in the local stream, not synced to disk: a power cut may lose it"
    if level == "stored":
        return stored
    if hub_seconds:
        return (
            f"held by the hub, whose server syncs its disk each {hub_seconds:g} s, "
            f"and until that disk has it {stored}"
        )
    return f"held by the hub, and {stored}"


class AckLevels:
    """Levels of inputs by name; `hub_seconds` returns the hub's sync interval."""

    def __init__(
        self, levels: Mapping[str, Level], health: ServerHealth, hub_seconds: Callable[[], float]
    ) -> None:
        self._levels, self._health, self._hub_seconds = levels, health, hub_seconds

    def meanings(self) -> dict[str, str]:
        """Return the sentences for `/status`."""
        return {name: self._sentence(level) for name, level in self._levels.items()}

    async def run(self) -> None:
        """Log each input's sentence when known and when it changes, until cancelled."""
        looks, logged = 0, dict[str, str]()
        while True:
            if self._health.is_synced is not None or logged or looks >= _FIRST_LOOKS:
                logged = self._log(logged)
            looks += 1
            await asyncio.sleep(_LOOK_SECONDS)

    def _log(self, logged: dict[str, str]) -> dict[str, str]:
        now = self.meanings()
        for name, sentence in now.items():
            if logged.get(name) != sentence:
                safe = self._health.is_synced is not False or self._levels[name] == "accepted"
                say = log.info if safe else log.warning
                say("acknowledgement level", input=name, ack=self._levels[name], means=sentence)
        return now

    def _sentence(self, level: Level) -> str:
        return meaning(level, self._health.is_synced, self._hub_seconds())
