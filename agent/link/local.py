"""The leaf's side of the link at its own server: stream and link consumer exist and are the ones they should
be."""

from __future__ import annotations

from typing import Final

import structlog

from agent import contract, streams
from agent.config import StreamClass
from agent.contract import H_MESSAGE_ID, Checkpoint
from agent.jetstream import JetStream, StreamInfo
from agent.link.guard import SENTENCES, NewEpoch, Remembered, Seen, judge
from agent.state import Acked, Position, StateFile

_CONSUMER_PREFIX: Final = contract.link_consumer("")

log = structlog.get_logger("link")


async def make_ready(
    js: JetStream, domain: str, cls: StreamClass, state: StateFile
) -> tuple[StreamInfo, NewEpoch | None]:
    """Make the stream of a class, look at it as the guard says, and start a new epoch where that is needed.
    Returns the stream and what was done. Raises `ApiError` or `UnavailableError`."""
    info = await js.ensure_stream(streams.leaf_stream(domain, cls))
    current = state.current
    remembered = Remembered(
        current.epochs.get(cls.name), current.acked.get(cls.name), current.checkpoint.get(cls.name)
    )
    seen = Seen(
        info.created,
        info.last,
        frozenset(await js.consumer_names(info.name)),
        await message_id(js, info.name, remembered.checkpoint),
    )
    verdict = judge(remembered, seen)
    if verdict is not None:
        await _start_epoch(js, domain, cls.name, info, verdict, state)
    await _drop_other_epochs(js, info.name, current.epochs[cls.name], seen.consumers)
    return info, verdict


async def message_id(js: JetStream, stream: str, checkpoint: Checkpoint | None) -> str | None:
    """The id of the leaf's own message at a checkpoint's sequence; None without one."""
    if checkpoint is None:
        return None
    message = await js.get_message(stream, seq=checkpoint.leaf_seq)
    return None if message is None else message.headers.get(H_MESSAGE_ID, "")


async def _start_epoch(
    js: JetStream, domain: str, cls: str, info: StreamInfo, verdict: NewEpoch, state: StateFile
) -> None:
    # The consumer first: an agent that dies before the state is saved finds neither of the two epochs usable
    # and starts a third, while a saved epoch without its consumer would look like one that was deleted by
    # hand. For the same reason a disk that takes no state now does not stand in the way.
    epoch = contract.new_epoch()
    await js.create_consumer(info.name, streams.link_consumer(domain, cls, epoch, verdict.start))
    current = state.current
    current.epochs[cls] = epoch
    current.checkpoint.pop(cls, None)
    if (acked := current.acked.get(cls)) is not None:
        current.acked[cls] = Acked(acked.run, acked.n, info.last, info.created, acked.readings, acked.closed)
    for name, position in current.positions.get(cls, {}).items():
        # What this stream stores of an input from now on is newer than what is remembered of it.
        current.positions[cls][name] = Position(position.text, min(position.seq, info.last))
    try:
        await state.save()
    except OSError as error:
        log.error("the new epoch is not in the state file yet", **{"class": cls}, error=str(error))
    log.warning("new epoch", **{"class": cls}, epoch=epoch, start=verdict.start, why=SENTENCES[verdict.why])


async def _drop_other_epochs(js: JetStream, stream: str, epoch: str, consumers: frozenset[str]) -> None:
    keep = contract.link_consumer(epoch)
    for name in consumers:
        if name.startswith(_CONSUMER_PREFIX) and name != keep:
            await js.delete_consumer(stream, name)
