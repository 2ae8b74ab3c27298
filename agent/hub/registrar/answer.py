"""Computes the registrar's answer on a class. Pure.

A too low cursor costs time; a too high one would make a leaf purge missing messages. So the lowest possible
is answered.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from agent.contract import H_MESSAGE_ID, H_SOURCE, Checkpoint, ClassAnswer, ContractError
from agent.hub.registrar.aggregate import ALIVE, is_full, parse_source_header
from agent.hub.registrar.records import CONTRADICTED, POWER_CUT, ClassRecord, HubPosition
from agent.jetstream import RawMessage, StreamInfo
from agent.jetstream.info import CopyStatus


class StoredMessage(Struct, frozen=True):
    """A leaf's message in the aggregate."""

    leaf_seq: int
    message_id: str
    hub_seq: int


def stored(message: RawMessage | None, leaf_stream: str) -> StoredMessage | None:
    """Return a message's origin, None if of another stream."""
    if message is None:
        return None
    try:
        name, seq = parse_source_header(message.headers.get(H_SOURCE, ""))
    except ContractError:
        return None
    if name != leaf_stream:
        return None
    return StoredMessage(seq, message.headers.get(H_MESSAGE_ID, ""), message.seq)


def is_certain(record: ClassRecord, state: CopyStatus | None, info: StreamInfo, noted: int = 0) -> bool:
    """Tell whether the known position can't be too low: its source has a sequence, or each purged message
    was seen before.

    `noted` is the aggregate's last sequence when all records were last updated before a purge. A new leader
    of a replicated aggregate searches its sources' positions up to 0.6 s after it answers, later under load
    (nats-server 2.15.3, `subscribeToStream` in server/stream.go). A source shows a sign of life only after
    the search.
    """
    if state is not None and state.seq:
        return True
    if info.config.get("num_replicas", 1) > 1 and not _is_searched(state, info):
        return False
    return not record.unsure and max(record.known_to, noted) >= info.first - 1


def _is_searched(state: CopyStatus | None, info: StreamInfo) -> bool:
    """Tell whether the leader has searched its sources' positions. At first it lists no source."""
    if state is not None:
        return state.active is not None
    return bool(info.sources) or not info.config.get("sources")


def held_now(
    held: HubPosition | None, state: CopyStatus | None, newest: StoredMessage | None, info: StreamInfo
) -> HubPosition | None:
    """Return the hub's position by memory, source and newest message.

    The newest message counts only with a source sequence, as it may be of an earlier epoch. A source that was
    added again after a purge has no sequence; then the memory counts.
    """
    seq = state.seq if state else 0
    if seq == 0:
        return held
    if newest is not None and newest.leaf_seq >= seq:
        found = HubPosition(
            newest.leaf_seq, newest.message_id, newest.hub_seq, max(info.last, newest.hub_seq)
        )
    else:
        found = HubPosition(seq, "", 0, info.last)
    if held is not None and _known(held) >= _known(found):
        return held
    return found


def _known(held: HubPosition) -> tuple[int, bool, bool]:
    """Return a sort key of knowledge."""
    return held.seq, held.message_id != "", held.hub_seq > 0


def held_at_start(held: HubPosition | None, state: CopyStatus | None, info: StreamInfo) -> HubPosition | None:
    """Return `held` if it is still credible after the server's absence, else None."""
    if held is None or info.last < held.last:
        return None
    if state is not None and 0 < state.seq < held.seq:
        return None
    return held


def proposal(held: HubPosition | None, stream: str) -> Checkpoint | None:
    """Return a checkpoint to propose; it needs a message id."""
    if held is None or not held.message_id:
        return None
    return Checkpoint(held.seq, held.message_id, stream, held.hub_seq)


def agreed(
    announced: Checkpoint, leaf_stream: str, record: ClassRecord, info: StreamInfo, message: RawMessage | None
) -> bool | None:
    """Tell whether a checkpoint holds, given the `message` at its hub sequence; None if unknown.

    A checkpoint of another aggregate does not hold: the hub forgot the leaf's aggregate. It is unknown of the
    aggregate before the leaf moved to another cell, since the epoch began after it.

    A purged checkpoint holds if the record remembers an equal or newer place. A record that remembers only
    older places, or lacks a place after `cut`, was restored from before the checkpoint, as proposals are
    stored first. Without memory it is unknown.
    """
    if announced.hub_stream != info.name:
        return None if announced.hub_stream == record.before else False
    if announced.hub_seq > info.last:
        return False
    if message is not None:
        return names(announced, message, leaf_stream)
    if announced in remembered(record):
        return True
    if any(
        checkpoint is not None and _is_behind(announced, checkpoint)
        for checkpoint in (record.checkpoint, record.proposed)
    ):
        return True
    unknown = record.cut is not None and announced.hub_seq > record.cut
    return False if unknown or record.proposed is not None else None


def known_at_start(record: ClassRecord, info: StreamInfo) -> ClassRecord:
    """Return the record without places that its restored aggregate has not reached."""
    known = (record.checkpoint, record.proposed)
    checkpoint, proposed = (one if one and one.hub_seq <= info.last else None for one in known)
    if (checkpoint, proposed) == known:
        return record
    return msgspec.structs.replace(record, checkpoint=checkpoint, proposed=proposed, cut=info.last)


def names(checkpoint: Checkpoint, message: RawMessage, leaf_stream: str) -> bool:
    """Tell whether a checkpoint is this message."""
    return stored(message, leaf_stream) == StoredMessage(
        checkpoint.leaf_seq, checkpoint.message_id, checkpoint.hub_seq
    )


def remembered(record: ClassRecord) -> set[Checkpoint]:
    """Return recorded places, valid after their purge."""
    known = (record.checkpoint, record.proposed, proposal(record.held, record.stream))
    return {checkpoint for checkpoint in known if checkpoint is not None}


def contradicted(record: ClassRecord, wrong: Checkpoint) -> ClassRecord:
    """Return the record after the aggregate showed another message at the place `wrong`.

    The aggregate was restored without its records, or lost its end in a power cut, and was filled since.
    """
    known = (record.checkpoint, record.proposed)
    checkpoint, proposed = (None if place == wrong else place for place in known)
    lost = record.lost or CONTRADICTED.format(record.stream)
    return msgspec.structs.replace(record, held=None, checkpoint=checkpoint, proposed=proposed, lost=lost)


def _is_behind(behind: Checkpoint, other: Checkpoint) -> bool:
    """Tell whether a checkpoint precedes another on both sides."""
    same = behind.hub_stream == other.hub_stream
    return same and behind.hub_seq < other.hub_seq and behind.leaf_seq < other.leaf_seq


def lacking(
    record: ClassRecord, acked: int, agreed: Checkpoint | None, *, certain: bool, whole: bool = True
) -> ClassRecord:
    """Return the record of a hub that acknowledged `acked`; `agreed` holds, `whole` means no gaps.

    A lower cursor proves a loss. The record remembers the loss, as later data hides it. After a power cut it
    remembers `agreed`, which was on disk before.
    """
    held = record.held.seq if record.held else 0
    if record.lost == POWER_CUT:
        return msgspec.structs.replace(record, proposed=_newest(agreed, record.proposed))
    if record.lost or not certain or acked <= held:
        return record
    newest = _newest(agreed, record.proposed, proposal(record.held, record.stream) if whole else None)
    lost = f"the hub holds up to {held} of {acked} that it has acknowledged"
    return msgspec.structs.replace(record, lost=lost, proposed=newest)


def skipped(record: ClassRecord, first: int, last: int, before: Checkpoint | None) -> ClassRecord:
    """Return the record with missing sequences, after the checkpoint `before`."""
    known = [place for place in (before, record.proposed) if place is not None and place.leaf_seq < first]
    lost = f"the hub lacks {first} to {last}, which its server acknowledged and did not store"
    return msgspec.structs.replace(record, lost=lost, proposed=_newest(*known))


def _newest(*checkpoints: Checkpoint | None) -> Checkpoint | None:
    known = [checkpoint for checkpoint in checkpoints if checkpoint is not None]
    return max(known, key=lambda checkpoint: checkpoint.leaf_seq, default=None)


def agreeing(
    record: ClassRecord, checkpoint: Checkpoint | None, agrees: bool | None, answer: ClassAnswer
) -> ClassRecord:
    """Return the record after this answer."""
    if agrees is False or record.lost:
        return record
    return msgspec.structs.replace(
        record,
        checkpoint=checkpoint if agrees else record.checkpoint,
        proposed=answer.checkpoint or record.proposed,
    )


def class_state(
    state: CopyStatus | None,
    info: StreamInfo,
    *,
    contested: bool,
    capped: bool = False,
    resting: bool = False,
) -> str:
    """Return `contested` (another machine announces the domain), `capped` (the domain's bytes of an hour are
    sent), `resting` (idle, no source), `full` (the leaf waits), `flowing`, or `linking` (silent or faulty
    source).
    """
    if contested:
        return "contested"
    if capped:
        return "capped"
    if resting:
        return "resting"
    if is_full(info):
        return "full"
    return "flowing" if state is not None and state.alive(ALIVE) and not state.error else "linking"


def class_answer(
    record: ClassRecord,
    state: str,
    agreed: bool | None,
    newest_batch: StoredMessage | None = None,
    *,
    certain: bool = True,
    fallback: Checkpoint | None = None,
) -> ClassAnswer:
    """Return a class's answer. A lost epoch has neither cursor nor checkpoint.

    A device's message at the cursor has no id; then the newest batch is proposed. A batch above the cursor is
    of an earlier epoch and is not proposed, since messages between are still in transit.
    """
    if record.lost:
        return ClassAnswer(record.stream, 0, "", state, agreed=False, fallback=fallback)
    held = record.held
    if held is None or (newest_batch is not None and newest_batch.leaf_seq > held.seq):
        newest_batch = None
    return ClassAnswer(
        stream=record.stream,
        cursor=held.seq if held else 0,
        message_id=held.message_id if held else "",
        state=state,
        agreed=agreed,
        checkpoint=proposal(held, record.stream) or _checkpoint(newest_batch, record.stream),
        certain=certain,
        fallback=fallback,
    )


def _checkpoint(message: StoredMessage | None, stream: str) -> Checkpoint | None:
    if message is None or not message.message_id:
        return None
    return Checkpoint(message.leaf_seq, message.message_id, stream, message.hub_seq)
