"""What the link controller does at the local server: it pauses and resumes the link consumer, sets its rate,
begins a new epoch, and trims a stream that fills up of what the hub has confirmed, never beyond."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog

from agent import contract
from agent.base.metrics import Metrics
from agent.config import StreamClass
from agent.contract import LostStream
from agent.jetstream import CONSUMER_NOT_FOUND, ApiError, JetStream, StreamInfo
from agent.leaf import stream_configs
from agent.leaf.link import checkpoints
from agent.leaf.link.guard import EpochReason, NewEpoch
from agent.leaf.state import Acked, PullPosition, StateFile

TRIM_ABOVE: Final = 0.8
_KEY = "rate_limit_bps"
_CONSUMER_PREFIX: Final = contract.link_consumer("")

log = structlog.get_logger("link")


async def pause(js: JetStream, domain: str, cls: str, epoch: str, seconds: float) -> None:
    """Pause the link consumer for so long, 0 to let it flow; one that is gone needs neither. Raises
    `ApiError` or `UnavailableError`."""
    try:
        await js.pause_consumer(contract.leaf_stream(domain, cls), contract.link_consumer(epoch), seconds)
    except ApiError as error:
        if error.err_code != CONSUMER_NOT_FOUND:
            raise


async def make_epoch(js: JetStream, domain: str, klass: StreamClass, start: int) -> str:
    """Make the link consumer of a new epoch, which `remember_epoch` then enters. Raises `ApiError` or
    `UnavailableError`.

    An agent that dies in between finds neither of the two epochs usable and starts a third, while an epoch in
    the state file without its consumer would look like one that was deleted by hand.
    """
    epoch = contract.new_epoch()
    config = stream_configs.link_consumer(domain, klass, epoch, start)
    await js.create_consumer(contract.leaf_stream(domain, klass.name), config)
    return epoch


async def remember_epoch(
    state: StateFile,
    cls: str,
    epoch: str,
    verdict: NewEpoch,
    info: StreamInfo,
    known: Acked | None,
    kept: int | None,
    told: Sequence[LostStream] = (),
) -> None:
    """Enter a new epoch into the state. `known` is the last PubAck as it was before the stream was looked at,
    for readings may have been stored since; `kept` the last sequence that the stream still holds of what it
    held then, None where it lacks nothing; `told` is what the stream itself says of lost stores where it
    knows of this one already."""
    current = state.current
    current.epochs[cls] = epoch
    checkpoints.forget(current, cls, verdict.start)
    made_anew = known is not None and known.created != info.created
    if known is not None and (made_anew or kept is not None):
        if told:
            current.learn(cls, told)
        else:
            current.lose(cls, known, None if made_anew else kept)
        current.acked[cls] = Acked(known.run, known.n, info.last, info.created, known.readings, known.closed)
    for name, position in current.positions.get(cls, {}).items():
        # What this stream stores of an input from now on is newer than what is remembered of it.
        current.positions[cls][name] = PullPosition(position.text, min(position.seq, info.last))
    try:
        await state.save()
    except OSError as error:
        # The consumer is there, so a disk that takes no state now does not stand in the way.
        log.error("the new epoch is not in the state file yet", **{"class": cls}, error=str(error))
    say = log.info if verdict.reason is EpochReason.FIRST else log.warning
    say("new epoch", **{"class": cls}, epoch=epoch, start=verdict.start, why=verdict.sentence())


async def drop_other_epochs(js: JetStream, domain: str, cls: str, epoch: str) -> None:
    """Delete the consumers of earlier epochs. Raises `ApiError` or `UnavailableError`."""
    stream, keep = contract.leaf_stream(domain, cls), contract.link_consumer(epoch)
    for name in await js.consumer_names(stream):
        if name.startswith(_CONSUMER_PREFIX) and name != keep:
            await js.delete_consumer(stream, name)


async def ensure_rate(js: JetStream, domain: str, cls: StreamClass, epoch: str) -> None:
    """Give the link consumer the rate of its class, where it has another one. It goes on with its epoch:
    nothing is lost or sent twice (seen on nats-server 2.15.1, which lets through as much as one message may
    have, 8 MiB, before it holds back). Raises `ApiError` or `UnavailableError`."""
    stream = contract.leaf_stream(domain, cls.name)
    consumer = await js.find_consumer(stream, contract.link_consumer(epoch))
    if consumer is None:
        return  # the controller recreates it, at its rate
    bits = stream_configs.rate_limit(cls)
    if consumer.config.get(_KEY, 0) != bits:
        await js.create_consumer(stream, {**consumer.config, _KEY: bits})


def is_crowded(info: StreamInfo, max_bytes: int) -> bool:
    """Whether a stream is so full that it is trimmed."""
    return info.bytes > TRIM_ABOVE * max_bytes


class Trimmer:
    """Purges streams. `allowed` says whether it may, `prepare` saves what only the purged messages tell,
    `trimmed(cls, first, last)` is told afterwards which sequences are gone."""

    def __init__(
        self,
        state: StateFile,
        metrics: Metrics,
        *,
        allowed: Callable[[], bool],
        prepare: Callable[[], Awaitable[None]],
        trimmed: Callable[[str, int, int], None],
    ) -> None:
        self._state, self._metrics = state, metrics
        self._allowed, self._prepare, self._trimmed = allowed, prepare, trimmed
        self._remembered: dict[str, int] = {}

    async def trim(self, js: JetStream, cls: str, info: StreamInfo, confirmed: int) -> None:
        """Purge up to the confirmed message, which stays: it is where the next answer is compared. Raises
        `JetStreamError`."""
        if confirmed - 1 < info.first or not self._allowed():
            return
        # The last batch of a pull input goes with the rest: from here on only the state file and the file of
        # positions have its position, and the file of requests their keys. On a full disk only what is
        # remembered there already may go, which frees the room to remember more.
        try:
            await self._prepare()
            await self._state.save()
            await self._state.save_positions()
            self._remembered[cls] = info.last
        except OSError as error:
            log.error("what is to be trimmed cannot be remembered on disk", error=str(error))
        up_to = min(confirmed - 1, self._remembered.get(cls, 0))
        if up_to < info.first:
            return
        purged = await js.purge(info.name, up_to)
        self._metrics.trimmed.labels(cls).inc(purged)
        self._trimmed(cls, info.first, up_to)
        log.info("trimmed what the hub has confirmed", **{"class": cls}, messages=purged, up_to=up_to)
