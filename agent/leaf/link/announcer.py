"""Announces what the leaf holds and compares it with the hub's answer.

A leaf announces itself at intervals, at once when something has changed, and ever more rarely while the hub
does not answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog
from nats.aio.client import Client
from nats.errors import Error as NatsError

from agent import contract
from agent.base.metrics import Metrics
from agent.base.wait import Backoff, event_within, loop_time
from agent.contract import (
    H_MESSAGE_ID,
    Announce,
    Answer,
    ClassAnswer,
    ClassState,
    CommandsWanted,
    ContractError,
    Previous,
)
from agent.jetstream import ConsumerInfo, JetStream, JetStreamError, StreamInfo, request
from agent.leaf.link.command_mirror.controller import CommandMirror
from agent.leaf.link.observation import HubComparison, UplinkStatus
from agent.leaf.link.status import LinkStatus
from agent.leaf.state import StateFile

CROWDED_SECONDS: Final = 2.0
"""From announcement to announcement while a stream waits to be trimmed."""
_FIRST, _LONGEST = 0.05, 1.0
ANSWER_SECONDS: Final = 5.0
_KNOWN_IDS: Final = 1000

log = structlog.get_logger("link")


class AnnounceLoop:
    """Announces over the current connection. `take_in(js, announcer, said)` is told what came of each, and
    `away(js, error)` that the local server did not answer; `repairs` tells whether a new epoch is due.
    `refused` is the hub's sentence where it refused the newest announcement; `silent_since` when it was first
    asked in vain since its last answer, None while it answers."""

    def __init__(
        self,
        board: LinkStatus,
        metrics: Metrics,
        link: Callable[[], UplinkStatus],
        take_in: Callable[[JetStream, Announcer, AnnounceResult], Awaitable[None]],
        away: Callable[[JetStream, JetStreamError], None],
        repairs: Callable[[], bool],
        seconds: float,
    ) -> None:
        self._board, self._metrics, self._link = board, metrics, link
        self._take_in, self._away, self._seconds = take_in, away, seconds
        self._repairs = repairs
        self._over: tuple[JetStream, Announcer] | None = None
        self._due = asyncio.Event()
        self._silence = ""
        self.refused: str | None = None
        self.silent_since: float | None = None

    @contextlib.contextmanager
    def connected(self, js: JetStream, announcer: Announcer) -> Iterator[None]:
        """Announce over this connection, at once, as long as the scope lasts."""
        self._over = (js, announcer)
        self._due.set()
        try:
            yield
        finally:
            self._over = None

    def ask_now(self) -> None:
        """Announce without waiting for the next turn."""
        self._due.set()

    async def run(self) -> None:
        """Announce until cancelled."""
        backoff = Backoff(_FIRST, _LONGEST)
        while True:
            self._due.clear()
            if self._over is not None:
                if await self._once(*self._over):
                    backoff.reset()
                else:
                    await asyncio.sleep(backoff.next())
            await event_within(self._due, self._pause())

    def _pause(self) -> float:
        if self.silent_since is not None:
            return _LONGEST
        crowded = any(one.crowded for one in self._board.classes.values())
        return CROWDED_SECONDS if crowded else self._seconds

    async def _once(self, js: JetStream, announcer: Announcer) -> bool:
        """Announce; whether the hub answered."""
        confirmed = {cls: one.confirmed for cls, one in self._board.classes.items()}
        try:
            said = await announcer.ask(confirmed, self._link(), repairs=self._repairs())
            if self._over is None or self._over[0] is not js:
                return True
            self._note(said)
            await self._take_in(js, announcer, said)
        except JetStreamError as error:
            self._away(js, error)
            return False
        return said.answer is not None

    def _note(self, said: AnnounceResult) -> None:
        self._metrics.linked.set(said.answer is not None)
        if said.answer is not None:
            self.silent_since, self._silence = None, ""
            self.refused = said.answer.refused
            return
        self.silent_since = self.silent_since or loop_time()
        if said.silence != self._silence:
            log.debug("announced in vain", why=said.silence)
        self._silence = said.silence


@dataclass(frozen=True, slots=True)
class AnnounceResult:
    """What came of one announcement: the hub's `answer` with the `streams` as they were before it (after it
    where that tells more) and each class `comparison`; or the `silence` in words."""

    answer: Answer | None = None
    silence: str = ""
    streams: Mapping[str, StreamInfo] = field(default_factory=dict)
    comparison: Mapping[str, HubComparison] = field(default_factory=dict)


class Announcer:
    """Asks the registrar over one connection to the local server."""

    def __init__(
        self,
        nc: Client,
        js: JetStream,
        *,
        domain: str,
        run: str,
        versions: Mapping[str, str],
        every: float,
        state: StateFile,
        ledger: Callable[[str], Previous],
        horizon: Callable[[str], float],
        clock: Callable[[], str],
        commands: CommandMirror,
    ) -> None:
        self._nc, self._js = nc, js
        self._domain, self._run, self._versions, self._every = domain, run, versions, every
        self._state, self._ledger, self._clock, self._commands = state, ledger, clock, commands
        self._horizon = horizon
        self._ids: dict[tuple[str, int], str] = {}

    async def ask(self, confirmed: Mapping[str, int], link: UplinkStatus, *, repairs: bool) -> AnnounceResult:
        """Announce; `confirmed` gives each class the sequence up to which the hub is known to hold all, and
        `repairs` says whether a new epoch is due.
        Raises `JetStreamError` when the local server does not answer."""
        asked = loop_time()
        epochs = {cls: self._state.current.epochs[cls] for cls in confirmed}
        names = {cls: contract.leaf_stream(self._domain, cls) for cls in confirmed}
        consumers = {
            cls: await self._js.find_consumer(name, contract.link_consumer(epochs[cls]))
            for cls, name in names.items()
        }
        streams = {cls: await self._js.stream_info(name) for cls, name in names.items()}
        acked = {cls: acknowledged(consumers[cls], info) for cls, info in streams.items()}
        commands = await self._commands.wanted()
        answer = await self._request(streams, epochs, confirmed, acked, commands, repairs)
        self._commands.answered(commands, None if isinstance(answer, str) else answer.commands)
        if isinstance(answer, str):
            return AnnounceResult(silence=answer, streams=streams)
        comparison = {}
        for cls, one in answer.classes.items():
            if cls not in streams:
                continue
            if one.cursor > streams[cls].last:
                streams[cls] = await self._js.stream_info(streams[cls].name)
            comparison[cls] = await self._compare(
                cls, one, asked, link.key, epochs[cls], consumers[cls], streams[cls]
            )
        return AnnounceResult(answer, "", streams, comparison)

    async def same(self, cls: str, info: StreamInfo, seq: int, message_id: str) -> bool | None:
        """Whether the leaf's message at a sequence has this id; None where that cannot be told, since there
        is no message or the hub's has no id. Raises `JetStreamError`."""
        if not message_id or not info.first <= seq <= info.last:
            return None
        key = (cls, seq)
        if key not in self._ids:
            message = await self._js.get_message(info.name, seq=seq)
            if message is None:
                return None
            if len(self._ids) >= _KNOWN_IDS:
                self._ids.clear()
            # What a stream holds at a sequence does not change while its server runs.
            self._ids[key] = message.headers.get(H_MESSAGE_ID, "")
        return self._ids[key] == message_id

    async def _request(
        self,
        streams: Mapping[str, StreamInfo],
        epochs: Mapping[str, str],
        confirmed: Mapping[str, int],
        acked: Mapping[str, int],
        commands: CommandsWanted | None,
        repairs: bool,
    ) -> Answer | str:
        announce = Announce(
            domain=self._domain,
            machine=self._state.current.machine,
            run=self._run,
            versions=self._versions,
            classes={
                cls: ClassState(
                    epoch=epochs[cls],
                    created=info.created,
                    first=info.first,
                    last=info.last,
                    confirmed=confirmed[cls],
                    bytes=info.bytes,
                    ledger=self._ledger(cls),
                    seconds_to_loss=self._horizon(cls),
                    acked=acked[cls],
                )
                for cls, info in streams.items()
            },
            checkpoint=self._state.current.checkpoint,
            clock=self._clock(),
            commands=commands,
            repairs=repairs,
            every=self._every,
        )
        try:
            reply = await request(
                self._nc, contract.announce_subject(self._domain), announce.encode(), ANSWER_SECONDS
            )
            answer = contract.parse_answer(reply.data)
            return f"not now: {answer.refused}" if answer.later else answer
        except (NatsError, OSError, TimeoutError):
            return "the hub does not answer"
        except ContractError as error:
            return f"the hub's answer is not understood: {error}"

    async def _compare(
        self,
        cls: str,
        answer: ClassAnswer,
        asked: float,
        link_key: str,
        epoch: str,
        consumer: ConsumerInfo | None,
        info: StreamInfo,
    ) -> HubComparison:
        checkpoint = self._state.current.checkpoint.get(cls)
        own = None
        if checkpoint is not None:
            own = await self.same(cls, info, checkpoint.leaf_seq, checkpoint.message_id)
        fallback = answer.fallback
        if fallback and not await self.same(cls, info, fallback.leaf_seq, fallback.message_id):
            fallback = None
        return HubComparison(
            asked_at=asked,
            link_key=link_key,
            epoch=epoch,
            start=consumer.start if consumer else 1,
            floor=consumer.ack_floor if consumer else 0,
            first=info.first,
            last=info.last,
            cursor=answer.cursor,
            same_at_cursor=await self.same(cls, info, answer.cursor, answer.message_id),
            checkpoint=checkpoint.leaf_seq if checkpoint else 0,
            has_checkpoint=own is not False,
            hub_agrees=answer.agreed,
            cursor_certain=answer.certain,
            hub_state=answer.state,
            fallback=fallback.leaf_seq if fallback else 0,
        )


def acknowledged(consumer: ConsumerInfo | None, info: StreamInfo) -> int:
    """The last sequence that the hub has acknowledged through an epoch, 0 where it has acknowledged none: the
    floor is where the epoch begins at first, and a purge lifts it."""
    if consumer is None or consumer.ack_floor < max(consumer.start, info.first):
        return 0
    return consumer.ack_floor
