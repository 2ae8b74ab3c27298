"""Acts on the local server: pauses, rates and epochs of link consumers, and trims of confirmed messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import structlog

from agent import contract
from agent.base.logs import LogEdge
from agent.base.metrics import Metrics
from agent.base.wait import bounded_gather, loop_time
from agent.config import StreamClass
from agent.contract import Checkpoint, LostStream
from agent.jetstream import CONSUMER_NOT_FOUND, JetStream, StreamInfo, unless_refused
from agent.leaf import stream_configs
from agent.leaf.events import EpochBegun, Events, StreamTrimmed
from agent.leaf.link.announcer import Announcer, AnnounceResult
from agent.leaf.link.guard import EpochReason, NewEpoch
from agent.leaf.link.observation import HubComparison, confirmed, difference
from agent.leaf.link.status import LinkStatus
from agent.leaf.state import Acked, CheckpointLog, PullPosition, forget_checkpoints
from agent.leaf.state_file import StateFile

_KEY = "rate_limit_bps"
_CONSUMER_PREFIX: Final = contract.link_consumer("")

log = structlog.get_logger("link")


async def pause(js: JetStream, domain: str, cls: str, epoch: str, seconds: float) -> None:
    """Pause a link consumer for seconds, 0 to resume; ignores a missing one. Raises `ApiError` or
    `UnavailableError`.
    """
    with unless_refused(CONSUMER_NOT_FOUND):
        await js.pause_consumer(contract.leaf_stream(domain, cls), contract.link_consumer(epoch), seconds)


async def make_epoch(js: JetStream, domain: str, klass: StreamClass, start: int) -> str:
    """Create a new epoch's link consumer, before `remember_epoch` records it. Raises `ApiError` or
    `UnavailableError`.

    An agent that dies in between starts a third epoch; a recorded epoch without consumer would look deleted
    by hand.
    """
    epoch = contract.new_epoch()
    config = stream_configs.link_consumer(domain, klass, epoch, start)
    await js.create_consumer(contract.leaf_stream(domain, klass.name), config)
    return epoch


async def remember_epoch(
    state: StateFile,
    cls: str,
    epoch: str,
    new_epoch: NewEpoch,
    info: StreamInfo,
    acked: Acked | None,
    kept: int | None,
    recorded: Sequence[LostStream] = (),
    *,
    begun: Callable[[], None],
) -> None:
    """Record a new epoch. `acked` is the last PubAck before the stream was read; always calls `begun`.

    `kept` is the last sequence still held of then, None if all; `recorded` are losses already in the ledger.
    """
    current = state.current
    current.epochs[cls] = epoch
    forget_checkpoints(current, cls, new_epoch.start)
    recreated = acked is not None and acked.created != info.created
    if acked is not None and (recreated or kept is not None):
        if recorded:
            current.learn(cls, recorded)
        else:
            current.lose(cls, acked, None if recreated else kept)
        current.acked[cls] = Acked(acked.run, acked.n, info.last, info.created, acked.readings, acked.closed)
    for name, position in current.positions.get(cls, {}).items():
        # What this stream stores of an input from now on is newer than what is remembered of it.
        current.positions[cls][name] = PullPosition(position.text, min(position.seq, info.last))
    try:
        await state.save()
    except OSError as error:
        # The consumer exists, so a disk that cannot store the state now does not matter.
        log.error("new epoch not saved yet", **{"class": cls}, error=str(error))
    finally:
        begun()
    say = log.info if new_epoch.reason is EpochReason.FIRST else log.warning
    say("new epoch", **{"class": cls}, epoch=epoch, start=new_epoch.start, why=new_epoch.sentence())


async def drop_other_epochs(js: JetStream, domain: str, cls: str, epoch: str) -> None:
    """Delete earlier epochs' consumers. Raises `ApiError` or `UnavailableError`."""
    stream, keep = contract.leaf_stream(domain, cls), contract.link_consumer(epoch)
    for name in await js.consumer_names(stream):
        if name.startswith(_CONSUMER_PREFIX) and name != keep:
            await js.delete_consumer(stream, name)


async def ensure_rate(js: JetStream, domain: str, cls: StreamClass, epoch: str) -> None:
    """Update the consumer's rate within its epoch. Raises `ApiError` or `UnavailableError`.

    nats-server first admits up to 8 MiB (`findings/nats-rate-limit-begins-with-the-largest-message.sh`).
    """
    stream = contract.leaf_stream(domain, cls.name)
    consumer = await js.find_consumer(stream, contract.link_consumer(epoch))
    if consumer is None:
        return  # the controller recreates it, at its rate
    bits = stream_configs.rate_limit(cls)
    if consumer.config.get(_KEY, 0) != bits:
        await js.create_consumer(stream, {**consumer.config, _KEY: bits})


async def limit_window(
    js: JetStream, domain: str, cls: str, config: Mapping[str, Any], messages: int
) -> None:
    """Limit the messages under way through an unpaused consumer. Raises `ApiError` or `UnavailableError`."""
    changed = {key: value for key, value in config.items() if key != "pause_until"}
    await js.create_consumer(contract.leaf_stream(domain, cls), {**changed, "max_ack_pending": messages})


class Trimmer:
    """Purges streams if `allowed()` and emits `StreamTrimmed`.

    `prepare` saves what only those messages hold; `note` notes before a purge, which may fail,
    that the hub holds these sequences.
    """

    def __init__(
        self,
        state: StateFile,
        metrics: Metrics,
        events: Events,
        *,
        allowed: Callable[[], bool],
        prepare: Callable[[], Awaitable[None]],
        note: Callable[[str, int, int], Awaitable[None]],
    ) -> None:
        self._state, self._metrics, self._events = state, metrics, events
        self._allowed, self._prepare, self._note = allowed, prepare, note
        self._saved: dict[str, int] = {}
        """Saved sequence by class."""
        self._unsaved = LogEdge(log, "state saved again", error=True)

    def epoch_begun(self, begun: EpochBegun) -> None:
        """Forget the saved sequence; the stream may differ."""
        self._saved.pop(begun.cls, None)

    async def trim(self, js: JetStream, cls: str, info: StreamInfo, confirmed: int) -> None:
        """Purge up to, not including, the confirmed message, which later answers are compared with. Raises
        `JetStreamError`.
        """
        if confirmed - 1 < info.first or not self._allowed():
            return
        # The last batch of a pull input goes with the rest: from here on only the state file and the file of
        # positions have its position, and the file of requests their keys. On a full disk only what is saved
        # there already may go, which frees the room to save more.
        try:
            await self._prepare()
            await self._state.save()
            await self._state.save_positions()
            self._saved[cls] = info.last
            self._unsaved.end()
        except OSError as error:
            self._unsaved.begin("state not saved before trimming", error=str(error))
        up_to = min(confirmed - 1, self._saved.get(cls, 0))
        if up_to < info.first:
            return
        await self._note(cls, info.first, up_to)
        purged = await js.purge(info.name, up_to)
        self._metrics.trimmed.labels(cls).inc(purged)
        self._events.emit(StreamTrimmed(cls))
        log.info("stream trimmed", **{"class": cls}, messages=purged, up_to=up_to)


class HubAgreement:
    """Agrees with the hub by class, and trims confirmed messages."""

    def __init__(self, domain: str, state: StateFile, status: LinkStatus, trimmer: Trimmer) -> None:
        self._domain, self._state, self._status, self._trimmer = domain, state, status, trimmer
        self._checkpoints = CheckpointLog(state.current)
        self._accepted: dict[str, str] = {}
        """Newest answered epoch by class."""

    async def take(
        self, js: JetStream, announcer: Announcer, result: AnnounceResult, classes: Sequence[str]
    ) -> None:
        """Process an answer for these classes. Raises `JetStreamError`."""
        answer = result.answer
        assert answer is not None

        async def agree(cls: str) -> None:
            info, comparison = result.streams[cls], result.comparisons[cls]
            await self._agree(js, announcer, info, comparison, cls, answer.classes[cls].checkpoint)
            self._status.count(cls, info)

        await bounded_gather(agree, classes)
        for cls in classes:
            status = self._status.classes[cls]
            if status.crowded and difference(result.comparisons[cls]) is None:
                await self._trimmer.trim(js, cls, result.streams[cls], status.confirmed)

    async def _agree(
        self,
        js: JetStream,
        announcer: Announcer,
        info: StreamInfo,
        comparison: HubComparison,
        cls: str,
        proposed: Checkpoint | None,
    ) -> None:
        """Agree and trim only without difference, which a newer checkpoint would hide."""
        if self._accepted.get(cls) != comparison.epoch:
            await drop_other_epochs(js, self._domain, cls, comparison.epoch)
            self._accepted[cls] = comparison.epoch
        holds = False
        if proposed and difference(comparison) is None:
            holds = bool(await announcer.holds(cls, info, proposed.leaf_seq, proposed.message_id))
        if comparison.epoch != self._state.current.epochs[cls]:
            return  # a new epoch has begun meanwhile
        status = self._status.classes[cls]
        if difference(comparison) is not None:
            status.confirmed = 0
            return
        agreed = confirmed(comparison)
        if proposed and holds:
            agreed = max(agreed, proposed.leaf_seq)
            self._checkpoints.agree(cls, proposed, loop_time())
            self._state.note_checkpoint()
        status.confirmed = agreed
