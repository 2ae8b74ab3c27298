"""The leaf's side of the link at its own server: stream and link consumer exist and are the ones they should
be."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from agent import contract
from agent.config import StreamClass
from agent.contract import H_MESSAGE_ID, Checkpoint, ContractError, LostStream
from agent.jetstream import STREAM_NOT_FOUND, ApiError, JetStream, StreamInfo, nanoseconds
from agent.leaf import stream_configs
from agent.leaf.link import checkpoints
from agent.leaf.link.act import drop_other_epochs, make_epoch, remember_epoch
from agent.leaf.link.guard import EpochObservation, EpochReason, NewEpoch, RememberedStream, judge
from agent.leaf.link.observation import ConsumerStatus
from agent.leaf.state import Acked, State, StateFile

_APART_NS: Final = 1_000_000_000
"""By how much a server's clock may be ahead of the agent's, which is the same machine's."""


async def prepare_stream(
    js: JetStream, domain: str, cls: StreamClass, state: StateFile, *, mqtt: bool = False
) -> tuple[StreamInfo, NewEpoch | None]:
    """Make the stream of a class, look at it as the guard says, and start a new epoch where that is needed.
    With `mqtt` it stores what MQTT devices send, too. Returns the stream and what was done. Raises `ApiError`
    or `UnavailableError`."""
    info = await js.ensure_stream(stream_configs.leaf_stream(domain, cls, mqtt=mqtt))
    current = state.current
    remembered = RememberedStream(
        current.epochs.get(cls.name), current.acked.get(cls.name), current.checkpoint.get(cls.name)
    )
    seen = EpochObservation(
        info.created,
        info.last,
        await message_id(js, info.name, remembered.checkpoint),
        await last_still_held(js, info, remembered.acked, time.time_ns()),
    )
    verdict = judge(remembered, seen)
    if verdict is not None and verdict.reason is EpochReason.PUT_BACK:
        held = await newest_checkpoint_held(js, info, checkpoints.earlier(current.earlier.get(cls.name, [])))
        verdict = judge(remembered, replace(seen, earlier=held))
    if verdict is not None:
        epoch = await make_epoch(js, domain, cls, verdict.start)
        if verdict.reason is EpochReason.PUT_BACK:
            # The older store has its old link consumer, which nobody has paused: what is stored from now on
            # would go to the hub over it, ahead of what stands before it in the new epoch. It goes before the
            # epoch is remembered: should that fail, the next look finds the same as this one.
            await drop_other_epochs(js, domain, cls.name, epoch)
        told = (
            () if seen.kept is None else await recorded_losses(js, domain, cls.name, info.created, seen.kept)
        )
        await remember_epoch(state, cls.name, epoch, verdict, info, remembered.acked, seen.kept, told)
    return info, verdict


async def recorded_losses(
    js: JetStream, domain: str, cls: str, created: str, kept: int
) -> tuple[LostStream, ...]:
    """What the newest ledger record says of lost stores where it was stored in a restored store and tells of
    that restore: an agent had found it and could not write its state file. The file knows less of what was
    lost than that agent, so it would tell of another loss. Raises `ApiError` or `UnavailableError`."""
    subject = contract.ledger_subject(domain, cls)
    message = await js.get_message(contract.leaf_stream(domain, cls), last_by_subject=subject)
    if message is None or message.seq <= kept:
        return ()
    try:
        lost = contract.parse_ledger(message.data).lost
    except ContractError:
        return ()
    return lost if any((one.created, one.kept) == (created, kept) for one in lost) else ()


async def note_lost_positions(
    js: JetStream, domain: str, classes: Iterable[str], pulls: Iterable[str], current: State
) -> None:
    """Note which of the pull inputs may have stored what no position tells of: all that have none, where the
    state file is new and a stream is not. To be called before an epoch is remembered, for with one the state
    is no longer new. Raises `ApiError` or `UnavailableError`."""
    if current.epochs:
        return
    for cls in classes:
        try:
            info = await js.stream_info(contract.leaf_stream(domain, cls))
        except ApiError as error:
            if error.err_code != STREAM_NOT_FOUND:
                raise
            continue
        if info.last:
            placed = {name for known in current.positions.values() for name in known}
            current.unplaced = [name for name in pulls if name not in placed]


async def newest_checkpoint_held(js: JetStream, info: StreamInfo, known: Sequence[Checkpoint]) -> int:
    """The leaf sequence of the newest checkpoint whose message the stream holds, 0 where it holds none; they
    come oldest first. An older copy of the store holds those from before it was made. Raises `ApiError` or
    `UnavailableError`."""
    found, low, high = 0, 0, len(known)
    while low < high:
        middle = (low + high) // 2
        one = known[middle]
        if one.leaf_seq < info.first:
            low = middle + 1
        elif await message_id(js, info.name, one) == one.message_id:
            found, low = one.leaf_seq, middle + 1
        else:
            high = middle
    return found


async def message_id(js: JetStream, stream: str, checkpoint: Checkpoint | None) -> str | None:
    """The id of the leaf's own message at a checkpoint's sequence; None without one."""
    if checkpoint is None:
        return None
    message = await js.get_message(stream, seq=checkpoint.leaf_seq)
    return None if message is None else message.headers.get(H_MESSAGE_ID, "")


async def last_still_held(js: JetStream, info: StreamInfo, known: Acked | None, now_ns: int) -> int | None:
    """The last sequence that the stream still holds of what it is known to have held, where an older store
    was put back; None where it lacks nothing. Raises `ApiError` or `UnavailableError`.

    Devices may have published to the older store before anybody looked, so that it has filled up again: the
    message at the last sequence that was seen is another one then, and the older store did not hold what was
    stored after all that is known, unless by a clock that was ahead.
    """
    if known is None or known.created != info.created:
        return None
    if info.last >= known.last:
        if not known.top_time:
            return None
        message = await js.get_message(info.name, seq=known.top)
        if message is None or nanoseconds(message.time) == nanoseconds(known.top_time):
            return None
    elif not known.at:
        return info.last
    held, newer = info.first - 1, info.last + 1
    while newer - held > 1:
        middle = (held + newer) // 2
        message = await js.get_message(info.name, seq=middle)
        if message is not None and known.at < nanoseconds(message.time) <= now_ns + _APART_NS:
            newer = middle
        else:
            held = middle
    return min(held, known.last)


async def consumer_status(js: JetStream, stream: str, epoch: str) -> ConsumerStatus | None:
    """The link consumer of an epoch, None where it is gone. Raises `ApiError` or `UnavailableError`."""
    info = await js.find_consumer(stream, contract.link_consumer(epoch))
    if info is None:
        return None
    return ConsumerStatus(
        start=info.start,
        paused_for=info.pause_remaining,
        bound=info.push_bound,
        delivered=info.delivered,
        floor=info.ack_floor,
        in_flight=info.ack_pending,
        pending=info.pending,
    )
