"""Sends one announcement, short if unchanged (`agent.contract.checkpoint`), and compares the answer with the
streams.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from msgspec import Struct, field
from nats.aio.client import Client
from nats.errors import Error as NatsError

from agent import contract
from agent.base.clock import machine
from agent.base.wait import bounded_gather, loop_time
from agent.contract import (
    H_MESSAGE_ID,
    Announce,
    Answer,
    ClassAnswer,
    ClassState,
    CommandsWanted,
    ContractError,
    Previous,
    Repeat,
    announce_subject,
    parse_answer,
    parse_repeat,
)
from agent.jetstream import ConsumerInfo, JetStream, StreamInfo, request
from agent.leaf.link.command_mirror.controller import CommandMirror
from agent.leaf.link.observation import HubComparison, UplinkStatus
from agent.leaf.state_file import StateFile

ANSWER_SECONDS: Final = 5.0
_READING: Final = "; monotonic="
"""The text after it changes with each clock reading."""
_MOST_IDS: Final = 1000
_CLOCK_SECONDS: Final = 10.0
"""Clock steps or differences above this are compared at each announcement."""


class AnnouncedLeaf(Struct, frozen=True):
    """The announced contents of a leaf."""

    domain: str
    run: str
    versions: Mapping[str, str]
    every: float
    """Seconds between announcements."""
    state: StateFile
    ledger: Callable[[str], Previous]
    """Returns a class's newest counts."""
    seconds_to_loss: Callable[[str], float]
    clock: Callable[[], str]
    is_idle: Callable[[str], bool]
    """Whether the hub may drop a complete class's source."""
    states: Callable[[], Mapping[str, str]]
    """Returns `Announce.states`."""
    clock_ahead: Callable[[float], None]
    """Receives this clock's lead over the hub's in seconds."""


class AnnounceResult(Struct, frozen=True):
    """The result by class."""

    answer: Answer | None = None
    silence: str = ""
    """Why there is no answer."""
    streams: Mapping[str, StreamInfo] = field(default_factory=dict)
    """Streams before the answer, or after if more useful."""
    comparisons: Mapping[str, HubComparison] = field(default_factory=dict)


class Announcer:
    """Announces a leaf over one local connection."""

    def __init__(self, nc: Client, js: JetStream, leaf: AnnouncedLeaf, commands: CommandMirror) -> None:
        self._js, self._leaf, self._commands = js, leaf, commands
        self._ids: dict[tuple[str, int], str] = {}
        self._exchange = HubExchange(nc, leaf.domain, leaf.clock_ahead)

    async def announce(
        self, confirmed: Mapping[str, int], link: UplinkStatus, *, repairs: bool
    ) -> AnnounceResult:
        """Announce with the hub's confirmed sequences; `repairs` for a due epoch. Raises `JetStreamError` for
        the local server.
        """
        asked_at = loop_time()
        epochs = {cls: self._leaf.state.current.epochs[cls] for cls in confirmed}
        names = {cls: contract.leaf_stream(self._leaf.domain, cls) for cls in confirmed}
        links = {cls: contract.link_consumer(epochs[cls]) for cls in names}
        # All consumers before all streams: a floor is never above what its stream is known to hold.
        consumers = dict(
            zip(
                names,
                await bounded_gather(lambda cls: self._js.find_consumer(names[cls], links[cls]), names),
                strict=True,
            )
        )
        streams = dict(zip(names, await bounded_gather(self._js.stream_info, names.values()), strict=True))
        acked = {cls: acknowledged(consumers[cls], info) for cls, info in streams.items()}
        commands = await self._commands.wanted()
        answer = await self._request(streams, epochs, confirmed, acked, commands, repairs)
        self._commands.answered(commands, None if isinstance(answer, str) else answer.commands)
        if isinstance(answer, str):
            return AnnounceResult(silence=answer, streams=streams)

        async def compared(cls: str) -> HubComparison:
            class_answer = answer.classes[cls]
            if class_answer.cursor > streams[cls].last:
                streams[cls] = await self._js.stream_info(streams[cls].name)
            return await self._compare(
                cls, class_answer, asked_at, link.key, epochs[cls], consumers[cls], streams[cls]
            )

        answered = [cls for cls in answer.classes if cls in streams]
        comparisons = dict(zip(answered, await bounded_gather(compared, answered), strict=True))
        return AnnounceResult(answer, "", streams, comparisons)

    async def holds(self, cls: str, info: StreamInfo, seq: int, message_id: str) -> bool | None:
        """Tell whether the leaf's message at a sequence has this id; None if unknown. Raises
        `JetStreamError`.
        """
        if not message_id or not info.first <= seq <= info.last:
            return None
        key = (cls, seq)
        if key not in self._ids:
            message = await self._js.get_message(info.name, seq=seq)
            if message is None:
                return None
            if len(self._ids) >= _MOST_IDS:
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
            domain=self._leaf.domain,
            machine=self._leaf.state.current.machine,
            run=self._leaf.run,
            versions=self._leaf.versions,
            classes={
                cls: ClassState(
                    epoch=epochs[cls],
                    created=info.created,
                    made=info.made,
                    first=info.first,
                    last=info.last,
                    confirmed=confirmed[cls],
                    bytes=info.bytes,
                    ledger=self._leaf.ledger(cls),
                    seconds_to_loss=self._leaf.seconds_to_loss(cls),
                    acked=acked[cls],
                    idle=info.last in (confirmed[cls], acked[cls]) and self._leaf.is_idle(cls),
                )
                for cls, info in streams.items()
            },
            checkpoint=self._leaf.state.current.checkpoint,
            clock=self._leaf.clock(),
            commands=commands,
            repairs=repairs,
            every=self._leaf.every,
            states=self._leaf.states(),
        )
        return await self._exchange.ask(announce)

    async def _compare(
        self,
        cls: str,
        answer: ClassAnswer,
        asked_at: float,
        link_key: str,
        epoch: str,
        consumer: ConsumerInfo | None,
        info: StreamInfo,
    ) -> HubComparison:
        checkpoint = self._leaf.state.current.checkpoint.get(cls)
        holds_checkpoint = None
        if checkpoint is not None:
            holds_checkpoint = await self.holds(cls, info, checkpoint.leaf_seq, checkpoint.message_id)
        fallback = answer.fallback
        if fallback and not await self.holds(cls, info, fallback.leaf_seq, fallback.message_id):
            fallback = None
        return HubComparison(
            asked_at=asked_at,
            link_key=link_key,
            epoch=epoch,
            start=consumer.start if consumer else 1,
            floor=consumer.ack_floor if consumer else 0,
            first=info.first,
            last=info.last,
            cursor=answer.cursor,
            same_at_cursor=await self.holds(cls, info, answer.cursor, answer.message_id),
            checkpoint=checkpoint.leaf_seq if checkpoint else 0,
            has_checkpoint=holds_checkpoint is not False,
            hub_agrees=answer.agreed,
            cursor_certain=answer.certain,
            hub_state=answer.state,
            fallback=fallback.leaf_seq if fallback else 0,
            synced=answer.synced,
        )


def acknowledged(consumer: ConsumerInfo | None, info: StreamInfo) -> int:
    """Return the last acknowledged sequence of an epoch, 0 for none. The floor starts with the epoch, and
    purges lift it.
    """
    if consumer is None or consumer.ack_floor < max(consumer.start, info.first):
        return 0
    return consumer.ack_floor


class HubExchange:
    """Exchanges with the registrar over one local connection."""

    def __init__(self, nc: Client, domain: str, clock_ahead: Callable[[float], None]) -> None:
        self._nc, self._domain, self._clock_ahead = nc, domain, clock_ahead
        self._ahead, self._offset = 0.0, 0.0
        self._newest: tuple[Announce, Answer] | None = None
        """Newest named exchange, None to announce in full."""

    async def ask(self, announce: Announce) -> Answer | str:
        """Return the answer, or why there is none."""
        said = replace(announce, clock=announce.clock.partition(_READING)[0])
        newest, self._newest = self._newest, None
        if abs(self._ahead) > _CLOCK_SECONDS or abs(_clock_offset() - self._offset) > _CLOCK_SECONDS:
            newest = None  # only an answer in full says the time
        answer: Answer | str | None = None
        if newest is not None and newest[0] == said:
            answer = await self._request(Repeat(newest[1].exchange).encode(), newest[1])
        if answer is None or (isinstance(answer, Answer) and answer.refused is not None):
            # A hub that refuses a repeat may only not know what is repeated.
            answer = await self._request(announce.encode(), None)
        if isinstance(answer, str):
            return answer
        if answer.later:
            return f"not now: {answer.refused}"
        if answer.exchange:
            self._newest = said, answer
        return answer

    async def _request(self, data: bytes, known: Answer | None) -> Answer | str:
        """Send a record; `known` is the answer that may be repeated."""
        try:
            reply = await request(self._nc, announce_subject(self._domain), data, ANSWER_SECONDS)
            repeat = parse_repeat(reply.data)
            if repeat is not None and known is not None and repeat.exchange == known.exchange:
                return known
            answer = parse_answer(reply.data)
            if answer.clock:
                self._offset = _clock_offset()
                self._ahead = machine.wall() / 1e9 - answer.clock
                self._clock_ahead(self._ahead)
            return answer
        except (NatsError, OSError, TimeoutError):
            return "the hub does not answer"
        except ContractError as error:
            return f"the hub's answer cannot be read: {error}"


def _clock_offset() -> float:
    return (machine.wall() - machine.monotonic()) / 1e9
