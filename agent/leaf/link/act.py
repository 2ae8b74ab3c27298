"""What the link keeper does at the local server: pause and resume the link consumer, begin a new epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import structlog

from agent import contract
from agent.config import StreamClass
from agent.contract import LostStream
from agent.jetstream import CONSUMER_NOT_FOUND, ApiError, JetStream, StreamInfo
from agent.leaf import stream_configs
from agent.leaf.link import checkpoints
from agent.leaf.link.guard import EpochReason, NewEpoch
from agent.leaf.position_file import PullPosition
from agent.leaf.state import Acked, StateFile

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
    say = log.info if verdict.why is EpochReason.FIRST else log.warning
    say("new epoch", **{"class": cls}, epoch=epoch, start=verdict.start, why=verdict.sentence())


async def drop_other_epochs(js: JetStream, domain: str, cls: str, epoch: str) -> None:
    """Delete the consumers of earlier epochs. Raises `ApiError` or `UnavailableError`."""
    stream, keep = contract.leaf_stream(domain, cls), contract.link_consumer(epoch)
    for name in await js.consumer_names(stream):
        if name.startswith(_CONSUMER_PREFIX) and name != keep:
            await js.delete_consumer(stream, name)
