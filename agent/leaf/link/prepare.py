"""Prepares the leaf's side of the link at its own server: the stream and the link consumer exist and are the
expected ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from msgspec.structs import replace

from agent import contract
from agent.config import StreamClass
from agent.contract import ContractError, LostStream
from agent.jetstream import JetStream, StreamInfo, nanoseconds
from agent.leaf import stream_configs
from agent.leaf.link.act import drop_other_epochs, make_epoch, remember_epoch
from agent.leaf.link.guard import EpochObservation, EpochReason, NewEpoch, RememberedStream, judge
from agent.leaf.link.identity import message_id, newest_checkpoint_held, recognise
from agent.leaf.state import Acked, State, earlier_checkpoints
from agent.leaf.state_file import StateFile

_APART_NS: Final = 1_000_000_000
"""By how much a server's clock may be ahead of the agent's, on the same machine."""


async def prepare_stream(
    js: JetStream,
    domain: str,
    cls: StreamClass,
    state: StateFile,
    *,
    begun: Callable[[NewEpoch], None],
    mqtt: bool = False,
) -> StreamInfo:
    """Create the stream of a class, check it by the guard, and begin a new epoch if one is needed, for which
    `begun` is called once, also if what follows fails. With `mqtt` the stream also stores what MQTT devices
    send. Returns the stream. Raises `ApiError` or `UnavailableError`."""
    info = await js.ensure_stream(stream_configs.leaf_stream(domain, cls, mqtt=mqtt))
    info = await recognise(js, domain, cls.name, info, state)
    current = state.current
    remembered = RememberedStream(
        current.epochs.get(cls.name), current.acked.get(cls.name), current.checkpoint.get(cls.name)
    )
    observation = EpochObservation(
        info.created,
        info.last,
        await message_id(js, info.name, remembered.checkpoint),
        await last_still_held(js, info, remembered.acked, time.time_ns()),
    )
    due = judge(remembered, observation)
    if due is not None and due.reason is EpochReason.RESTORED:
        held = await newest_checkpoint_held(js, info, earlier_checkpoints(current.earlier.get(cls.name, [])))
        due = judge(remembered, replace(observation, earlier=held))
    if due is not None:
        # What both sides agreed on, a restored store holds.
        kept = None if observation.kept is None else max(observation.kept, due.start - 1)
        epoch = await make_epoch(js, domain, cls, due.start)
        if due.reason is EpochReason.RESTORED:
            # The restored store has its old link consumer, which is not paused: what is stored from now on
            # would go to the hub over it, ahead of what comes before it in the new epoch. Delete it before
            # the epoch is recorded: should that fail, the next attempt finds the same as this one.
            await drop_other_epochs(js, domain, cls.name, epoch)
        recorded = () if kept is None else await recorded_losses(js, domain, cls.name, info.created, kept)
        if due.reason is EpochReason.RECREATED:
            known = current.lost.get(cls.name, ())
            current.learn(cls.name, await ends_of_returned(js, info, known, time.time_ns()))
        await remember_epoch(
            state, cls.name, epoch, due, info, remembered.acked, kept, recorded, begun=partial(begun, due)
        )
    return info


async def recorded_losses(
    js: JetStream, domain: str, cls: str, created: str, kept: int
) -> tuple[LostStream, ...]:
    """The lost stores in the newest ledger record, if it was stored in a restored store and has that restore:
    an agent had found it and could not write its state file. The file knows less of what was lost than that
    agent, so it would record another loss. Raises `ApiError` or `UnavailableError`."""
    subject = contract.ledger_subject(domain, cls)
    message = await js.get_message(contract.leaf_stream(domain, cls), last_by_subject=subject)
    if message is None or message.seq <= kept:
        return ()
    try:
        lost = contract.parse_ledger(message.data).lost
    except ContractError:
        return ()
    return lost if any((store.created, store.kept) == (created, kept) for store in lost) else ()


async def note_lost_positions(
    js: JetStream, domain: str, classes: Iterable[str], pulls: Iterable[str], current: State
) -> None:
    """Note which pull inputs may have stored data without a known position: all that have none, if the state
    file is new and a stream is not. Call it before an epoch is recorded, since with one the state is no
    longer new. Raises `ApiError` or `UnavailableError`."""
    if current.epochs:
        return
    for cls in classes:
        info = await js.find_stream(contract.leaf_stream(domain, cls))
        if info is not None and info.last:
            placed = {name for positions in current.positions.values() for name in positions}
            current.unplaced = [name for name in pulls if name not in placed]


async def note_stale_positions(js: JetStream, domain: str, classes: Iterable[str], current: State) -> None:
    """Note which pull inputs may have stored more than their position says: the state file is that of an
    older copy. Messages behind the last one that it knows are trimmed already, and no run that it knows has
    written the newest ledger record. A position in the stream itself is the newest. Call it before the run
    stores anything. Raises `ApiError` or `UnavailableError`."""
    for cls in classes:
        acked = current.acked.get(cls)
        info = None if acked is None else await js.find_stream(contract.leaf_stream(domain, cls))
        if acked is None or info is None or info.created != acked.created or info.first <= acked.last + 1:
            continue
        previous = current.previous.get(cls)
        runs = {acked.run, *([] if previous is None else [previous.run])}
        if await _newest_run(js, domain, cls) in runs:
            continue
        for name, position in current.positions.get(cls, {}).items():
            subjects = [contract.batch_subject(domain, cls, name), contract.dead_subject(domain, cls, name)]
            stored = [await js.get_message(info.name, last_by_subject=subject) for subject in subjects]
            if max((one.seq for one in stored if one is not None), default=0) <= position.seq:
                current.stale = [*current.stale, name]


async def _newest_run(js: JetStream, domain: str, cls: str) -> str | None:
    """The run of the newest ledger record in a stream, None where there is none."""
    stream, subject = contract.leaf_stream(domain, cls), contract.ledger_subject(domain, cls)
    message = await js.get_message(stream, last_by_subject=subject)
    try:
        return None if message is None else contract.parse_ledger(message.data).run
    except ContractError:
        return None


async def last_still_held(js: JetStream, info: StreamInfo, acked: Acked | None, now_ns: int) -> int | None:
    """The last sequence that a stream restored from a backup still holds of what it is known to have held;
    None if it lacks nothing. Raises `ApiError` or `UnavailableError`.

    Devices may have published to the restored store before the agent looked, so that it has filled up again:
    then the message at the last known sequence is another one, and the backup did not hold what was stored
    after the last known time. If that time is still to come, the clock was set back since, and nothing tells
    what the backup held: then it counts as nothing but what leaf and hub agreed on.
    """
    if acked is None or acked.created != info.created:
        return None
    if info.last >= acked.last:
        if not acked.top_time:
            return None
        message = await js.get_message(info.name, seq=acked.top)
        if message is None or nanoseconds(message.time) == nanoseconds(acked.top_time):
            return None
    elif not acked.at:
        return info.last
    return min(await _last_before(js, info, acked.at, now_ns), acked.last)


async def ends_of_returned(
    js: JetStream, info: StreamInfo, lost: Iterable[LostStream], now_ns: int
) -> list[LostStream]:
    """What a stream lacks that was lost and is there again, as where its directory was moved away and back:
    the end that an older copy of it does not hold. Raises `ApiError` or `UnavailableError`."""
    ends = []
    for store in lost:
        if store.created == info.created and store.kept is None:
            held = await _last_before(js, info, store.at, now_ns) if store.at else min(info.last, store.last)
            ends += [LostStream(info.created, store.last, held, store.at)] if held < store.last else []
    return ends


async def _last_before(js: JetStream, info: StreamInfo, at: int, now_ns: int) -> int:
    """The last sequence that a stream held at a time in ns since 1970. A time that is still to come tells
    nothing."""
    if at > now_ns + _APART_NS:
        return info.first - 1
    held, newer = info.first - 1, info.last + 1
    while newer - held > 1:
        middle = (held + newer) // 2
        message = await js.get_message(info.name, seq=middle)
        if message is not None and at < nanoseconds(message.time) <= now_ns + _APART_NS:
            newer = middle
        else:
            held = middle
    return held
