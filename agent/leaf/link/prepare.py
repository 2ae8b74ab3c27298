"""Prepares stream and link consumer at the leaf's server."""

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
"""Allowed lead of the server's clock on this machine."""


async def prepare_stream(
    js: JetStream,
    domain: str,
    cls: StreamClass,
    state: StateFile,
    *,
    begun: Callable[[NewEpoch], None],
    mqtt: bool = False,
) -> StreamInfo:
    """Create and check a class's stream, and begin an epoch if needed. Raises `ApiError` or
    `UnavailableError`.

    `begun` is called once for an epoch, even on failure. `mqtt` adds MQTT subjects.
    """
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
    """Return losses of the newest ledger record if it knows this restore, else ().

    An agent may have recorded it without saving its state. Raises `ApiError` or `UnavailableError`.
    """
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
    """Note pull inputs that may have stored data without known position: all, if the state is new and a
    stream is not.

    Call before an epoch is recorded. Raises `ApiError` or `UnavailableError`.
    """
    if current.epochs:
        return
    for cls in classes:
        info = await js.find_stream(contract.leaf_stream(domain, cls))
        if info is not None and info.last:
            placed = {name for positions in current.positions.values() for name in positions}
            current.unplaced = [name for name in pulls if name not in placed]


async def note_stale_positions(js: JetStream, domain: str, classes: Iterable[str], current: State) -> None:
    """Note pull inputs whose position may be older than their data, from an older state copy.

    Then messages after its last known one are trimmed, and no known run wrote the newest record. A position
    in the stream itself is the newest. Call before storing. Raises `ApiError` or `UnavailableError`.
    """
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
    """Return the newest ledger record's run, or None."""
    stream, subject = contract.leaf_stream(domain, cls), contract.ledger_subject(domain, cls)
    message = await js.get_message(stream, last_by_subject=subject)
    try:
        return None if message is None else contract.parse_ledger(message.data).run
    except ContractError:
        return None


async def last_still_held(js: JetStream, info: StreamInfo, acked: Acked | None, now_ns: int) -> int | None:
    """Return the last known sequence that a restored stream still holds, None if all.

    Raises `ApiError` or `UnavailableError`. Devices may have refilled the restored store; then the message at
    the last known sequence differs, and messages stored after the last known time were not in the backup. A
    last time in the future means a clock set back; then only messages agreed with the hub count.
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
    """Return the missing end of a stream that returned as an older copy. Raises `ApiError` or
    `UnavailableError`.
    """
    ends = []
    for store in lost:
        if store.created == info.created and store.kept is None:
            held = await _last_before(js, info, store.at, now_ns) if store.at else min(info.last, store.last)
            ends += [LostStream(info.created, store.last, held, store.at)] if held < store.last else []
    return ends


async def _last_before(js: JetStream, info: StreamInfo, at: int, now_ns: int) -> int:
    """Return the last sequence at a time in ns since 1970; a future time tells nothing."""
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
