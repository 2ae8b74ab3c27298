"""The leaf's side of the link towards the hub: announces what it holds, learns what the hub holds, keeps the
checkpoint, and trims the stream up to what the hub has confirmed.

`lag: 0` is never believed: a cursor counts only when the message at it is the same on both sides.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import structlog
from nats.aio.client import Client
from nats.errors import Error as NatsError

from agent import contract
from agent.config import StreamClass
from agent.contract import H_MESSAGE_ID, Announce, Answer, ClassAnswer, ClassState, ContractError, Previous
from agent.jetstream import JetStream, JetStreamError, StreamInfo, request
from agent.link.declared.commands import CommandMirror
from agent.metrics import Metrics
from agent.state import StateFile

ANNOUNCE_SECONDS = 10.0
UNLINKED_SECONDS = 1.0
CROWDED_SECONDS = 2.0
ANSWER_SECONDS = 5.0
TRIM_ABOVE = 0.8

log = structlog.get_logger("link")


@dataclass(slots=True)
class ClassLink:
    """What is known of one class's link. `confirmed` is the leaf sequence up to which the hub holds
    everything; `crowded` that the stream is so full that this much is trimmed."""

    confirmed: int = 0
    last: int = 0
    state: str = "not announced yet"
    hub_stream: str = ""
    crowded: bool = False


@dataclass(slots=True)
class Link:
    """The link as one sentence and by class."""

    sentence: str = "the hub has not answered yet"
    linked: bool = False
    classes: dict[str, ClassLink] = field(default_factory=dict)


class Uplink:
    """Announces over the current connection; `attach` and `detach` say which that is."""

    def __init__(
        self,
        *,
        domain: str,
        run: str,
        classes: Mapping[str, StreamClass],
        versions: Mapping[str, str],
        state: StateFile,
        metrics: Metrics,
        ledger: Callable[[str], Previous],
        clock: Callable[[], str],
        may_trim: Callable[[], bool],
        before_trim: Callable[[], Awaitable[None]],
        on_trimmed: Callable[[str], None],
    ) -> None:
        self.commands = CommandMirror(domain, state, metrics, self.announce_now)
        self._domain, self._run, self._classes, self._versions = domain, run, classes, versions
        self._state, self._metrics, self._ledger, self._clock = state, metrics, ledger, clock
        self._may_trim, self._before_trim, self._on_trimmed = may_trim, before_trim, on_trimmed
        self._connection: tuple[Client, JetStream] | None = None
        self._due = asyncio.Event()
        self.link = Link(classes={name: ClassLink() for name in classes})

    def attach(self, nc: Client, js: JetStream) -> None:
        """Announce over this connection, at once."""
        self._connection = (nc, js)
        self.commands.attach(js)
        self._due.set()

    def detach(self) -> None:
        """There is no connection to announce over."""
        self._connection = None
        self.commands.detach()

    def announce_now(self) -> None:
        """Something has changed (the link came up, a stream is full): announce without waiting for the next
        turn."""
        self._due.set()

    async def run(self) -> None:
        """Announce every `ANNOUNCE_SECONDS`, more often while the hub does not answer or a stream waits to be
        trimmed."""
        while True:
            self._due.clear()
            if self._connection is not None:
                await self._turn(*self._connection)
            try:
                async with asyncio.timeout(self._pause()):
                    await self._due.wait()
            except TimeoutError:
                continue

    def _pause(self) -> float:
        if not self.link.linked:
            return UNLINKED_SECONDS
        crowded = any(one.crowded for one in self.link.classes.values())
        return CROWDED_SECONDS if crowded else ANNOUNCE_SECONDS

    async def _turn(self, nc: Client, js: JetStream) -> None:
        try:
            infos = {
                name: await js.stream_info(contract.leaf_stream(self._domain, name)) for name in self._classes
            }
        except JetStreamError as error:
            self._say(False, f"the local stream does not answer: {error}")
            return
        answer = await self._announce(nc, infos)
        self.commands.answered(None if answer is None else answer.commands)
        try:
            for name, info in infos.items():
                if answer is not None and (mine := answer.classes.get(name)) is not None:
                    await self._take_in(js, name, info, mine)
                self._show(name, info)
        except JetStreamError as error:
            self._say(False, f"the local stream does not answer: {error}")

    async def _announce(self, nc: Client, infos: Mapping[str, StreamInfo]) -> Answer | None:
        announce = Announce(
            domain=self._domain,
            machine=self._state.current.machine,
            run=self._run,
            versions=self._versions,
            classes={name: self._class_state(name, info) for name, info in infos.items()},
            checkpoint=self._state.current.checkpoint,
            clock=self._clock(),
            commands=self.commands.wanted(),
        )
        try:
            reply = await request(
                nc, contract.announce_subject(self._domain), announce.encode(), ANSWER_SECONDS
            )
            answer = contract.parse_answer(reply.data)
        except (NatsError, OSError, TimeoutError):
            self._say(False, "the hub does not answer: the link is down or its registrar is away")
            return None
        except ContractError as error:
            self._say(False, f"the hub's answer is not understood: {error}")
            return None
        if answer.refused is not None:
            self._say(False, f"the hub refuses this leaf: {answer.refused}")
            return None
        self._say(True, "the hub answers")
        return answer

    def _class_state(self, name: str, info: StreamInfo) -> ClassState:
        return ClassState(
            epoch=self._state.current.epochs[name],
            created=info.created,
            first=info.first,
            last=info.last,
            confirmed=self.link.classes[name].confirmed,
            bytes=info.bytes,
            ledger=self._ledger(name),
        )

    async def _take_in(self, js: JetStream, name: str, info: StreamInfo, answer: ClassAnswer) -> None:
        link = self.link.classes[name]
        link.hub_stream = answer.stream
        link.crowded = info.bytes > TRIM_ABOVE * self._classes[name].max_bytes
        self._say_class(name, self._sentence(name, answer))
        if answer.agreed is False:
            # What one side lost may still be here, so nothing is trimmed, and no newer checkpoint is agreed
            # on that would hide it.
            link.confirmed = 0
            return
        # A hub that holds less than before had an older store put back.
        link.confirmed = min(link.confirmed, answer.cursor)
        if await self._same_message(js, info, answer.cursor, answer.message_id):
            link.confirmed = answer.cursor
        proposed = answer.checkpoint
        if proposed and await self._same_message(js, info, proposed.leaf_seq, proposed.message_id):
            link.confirmed = max(link.confirmed, proposed.leaf_seq)
            self._state.current.checkpoint[name] = proposed
            self._state.mark()
        await self._trim(js, name, info, link.confirmed)

    async def _same_message(self, js: JetStream, info: StreamInfo, seq: int, message_id: str) -> bool:
        # A device's own message has no id on either side; nothing more can be asked of it.
        if not info.first <= seq <= info.last:
            return False
        message = await js.get_message(info.name, seq=seq)
        return message is not None and message.headers.get(H_MESSAGE_ID, "") == message_id

    async def _trim(self, js: JetStream, name: str, info: StreamInfo, confirmed: int) -> None:
        # The confirmed message itself stays: it is where the next answer is compared.
        if not self.link.classes[name].crowded or confirmed - 1 < info.first or not self._may_trim():
            return
        # The last batch of a pull input goes with the rest: from here on only the state file has its
        # position, and the file of requests their keys. A disk that is full is no reason to keep what fills
        # it.
        with contextlib.suppress(OSError):
            await self._before_trim()
            await self._state.save()
        purged = await js.purge(info.name, confirmed - 1)
        self._metrics.trimmed.labels(name).inc(purged)
        self._on_trimmed(name)
        log.info(
            "trimmed what the hub has confirmed", **{"class": name}, messages=purged, up_to=confirmed - 1
        )

    def _show(self, name: str, info: StreamInfo) -> None:
        link = self.link.classes[name]
        link.last = info.last
        self._metrics.backlog.labels(name).set(max(0, info.last - max(link.confirmed, info.first - 1)))
        self._metrics.stream_bytes.labels(name).set(info.bytes)
        self._metrics.confirmed.labels(name).set(link.confirmed)

    def forget_confirmed(self, name: str) -> None:
        """A new epoch: what the hub confirmed of the old stream says nothing of this one."""
        self.link.classes[name] = ClassLink()

    def _sentence(self, name: str, answer: ClassAnswer) -> str:
        checkpoint = self._state.current.checkpoint.get(name)
        if answer.agreed is False and checkpoint is not None:
            return (
                f"leaf and hub disagree on message {checkpoint.leaf_seq}: a store was put back on one side; "
                "nothing is trimmed"
            )
        return answer.state

    def _say_class(self, name: str, sentence: str) -> None:
        if self.link.classes[name].state != sentence:
            self.link.classes[name].state = sentence
            log.info("link state", **{"class": name}, state=sentence)

    def _say(self, linked: bool, sentence: str) -> None:
        self._metrics.linked.set(linked)
        if self.link.sentence != sentence:
            (log.info if linked else log.warning)("link", state=sentence)
        self.link.linked, self.link.sentence = linked, sentence
