"""What the registrar tells a leaf of one class: the cursor, the message there, the state, the checkpoint.
Pure.

A cursor that is too low costs a leaf nothing but time; one that is too high would make it purge what the hub
does not hold. So where two sources of truth differ, the answer is the lower one that can be true.
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
    """A message of a leaf as the aggregate holds it."""

    leaf_seq: int
    message_id: str
    hub_seq: int


def stored(message: RawMessage | None, leaf_stream: str) -> StoredMessage | None:
    """What a message of the aggregate says of its origin, None where it did not come from that leaf
    stream."""
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
    """Whether what the hub is known to hold of an epoch cannot be too little: its source has a sequence, or
    nothing was purged that was not looked at before. `noted` is the aggregate's last sequence when all
    records were last brought up to date before a purge."""
    if state is not None and state.seq:
        return True
    return not record.unsure and max(record.known_to, noted) >= info.first - 1


def held_now(
    held: HubPosition | None, state: CopyStatus | None, newest: StoredMessage | None, info: StreamInfo
) -> HubPosition | None:
    """What the hub holds of an epoch, from what was known of it, its source and the newest message of the
    leaf.

    The newest message counts only where the source itself has a sequence: without one it may stem from an
    epoch before. What was known stays where the source lost its sequence (added again after a purge).
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
    """How much is known of what the hub holds, to compare."""
    return held.seq, held.message_id != "", held.hub_seq > 0


def held_at_start(held: HubPosition | None, state: CopyStatus | None, info: StreamInfo) -> HubPosition | None:
    """What may still be believed of `held` after the hub's server was away: its store may have been put
    back."""
    if held is None or info.last < held.last:
        return None
    if state is not None and 0 < state.seq < held.seq:
        return None
    return held


def proposal(held: HubPosition | None, stream: str) -> Checkpoint | None:
    """The place where leaf and hub may agree; only a message with an id can be identified."""
    if held is None or not held.message_id:
        return None
    return Checkpoint(held.seq, held.message_id, stream, held.hub_seq)


def agreed(
    announced: Checkpoint, leaf_stream: str, record: ClassRecord, info: StreamInfo, message: RawMessage | None
) -> bool | None:
    """Whether an announced checkpoint still holds: `message` is what the aggregate holds at its hub sequence.
    One of another aggregate does not hold: the hub has forgotten where this leaf belongs, and what came
    before this aggregate may not be there. Of that in which the class was before its leaf moved to another
    cell it is not known: the epoch began behind what was agreed there.

    A purged one is compared with what the record remembers. It holds where that is as new. It does not where
    all that is remembered is older, or nothing is that should be: what is proposed is stored first, so the
    record or the aggregate was restored from before the checkpoint, and has been filled and purged beyond it
    since. None where the record remembers nothing.
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
    """The record after the hub's server was away: what it knows of places that its aggregate has not reached
    is of an aggregate that was restored without its record since."""
    known = (record.checkpoint, record.proposed)
    checkpoint, proposed = (one if one and one.hub_seq <= info.last else None for one in known)
    if (checkpoint, proposed) == known:
        return record
    return msgspec.structs.replace(record, checkpoint=checkpoint, proposed=proposed, cut=info.last)


def names(checkpoint: Checkpoint, message: RawMessage, leaf_stream: str) -> bool:
    """Whether a checkpoint names this message of its aggregate."""
    return stored(message, leaf_stream) == StoredMessage(
        checkpoint.leaf_seq, checkpoint.message_id, checkpoint.hub_seq
    )


def remembered(record: ClassRecord) -> set[Checkpoint]:
    """The places that a record knows; once they are purged it alone says what was there."""
    known = (record.checkpoint, record.proposed, proposal(record.held, record.stream))
    return {checkpoint for checkpoint in known if checkpoint is not None}


def contradicted(record: ClassRecord, wrong: Checkpoint) -> ClassRecord:
    """The record where the aggregate holds another message at a place that it remembers: the aggregate was
    restored without its records, or a power cut took what was there, and it has been filled beyond that place
    before the registrar looked."""
    known = (record.checkpoint, record.proposed)
    checkpoint, proposed = (None if place == wrong else place for place in known)
    lost = record.lost or CONTRADICTED.format(record.stream)
    return msgspec.structs.replace(record, held=None, checkpoint=checkpoint, proposed=proposed, lost=lost)


def _is_behind(behind: Checkpoint, other: Checkpoint) -> bool:
    """Whether a checkpoint stands before another one of the same aggregate on both sides."""
    same = behind.hub_stream == other.hub_stream
    return same and behind.hub_seq < other.hub_seq and behind.leaf_seq < other.leaf_seq


def lacking(
    record: ClassRecord, acked: int, agreed: Checkpoint | None, *, certain: bool, whole: bool = True
) -> ClassRecord:
    """The record where the hub has acknowledged up to a sequence of the leaf; `agreed` is the checkpoint that
    holds, and `whole` says whether nothing is missing below what the hub holds.

    A cursor below that proves that the hub lacks something, and as long as nothing more flows that it holds
    all before. Both are remembered, for once more has flowed the cursor looks well again. After a power cut
    the checkpoint that holds is remembered, for it was on disk before.
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
    """The record where the aggregate lacks these sequences of the leaf though it has later ones; `before` is
    the newest checkpoint known to stand before them."""
    known = [place for place in (before, record.proposed) if place is not None and place.leaf_seq < first]
    lost = f"the hub lacks {first} to {last}, which its server acknowledged and did not store"
    return msgspec.structs.replace(record, lost=lost, proposed=_newest(*known))


def _newest(*checkpoints: Checkpoint | None) -> Checkpoint | None:
    known = [checkpoint for checkpoint in checkpoints if checkpoint is not None]
    return max(known, key=lambda checkpoint: checkpoint.leaf_seq, default=None)


def agreeing(
    record: ClassRecord, checkpoint: Checkpoint | None, agrees: bool | None, answer: ClassAnswer
) -> ClassRecord:
    """The record after this answer to an announced checkpoint."""
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
    """One word: `contested` (another machine announces the domain too), `capped` (the domain has sent what it
    may in an hour), `resting` (idle, without a source), `full` (the aggregate has no room, the leaf waits),
    `flowing`, or `linking` (the source was not heard from lately, or its server says what is wrong with
    it)."""
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
    """The answer for one class. Where the message at the cursor has no id, as a device's own has none, the
    newest batch is proposed as checkpoint instead, unless it stands behind the cursor: then it came through
    an epoch before, and what lies between is still on its way. Of an epoch that is lost nothing is held or
    agreed."""
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
