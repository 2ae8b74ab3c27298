"""What the registrar makes of an announcement over a modelled hub, with the functions that it decides by."""

from __future__ import annotations

import msgspec

from agent.contract import (
    H_MESSAGE_ID,
    H_SOURCE,
    Announce,
    Checkpoint,
    ClassAnswer,
    leaf_stream,
    link_consumer,
)
from agent.hub.registrar.answer import (
    StoredMessage,
    agreed,
    agreeing,
    class_answer,
    contradicted,
    held_at_start,
    held_now,
    is_certain,
    known_at_start,
    lacking,
    names,
    remembered,
    skipped,
)
from agent.hub.registrar.durability import bounded
from agent.hub.registrar.records import AggregateRef, ClassRecord, admitted, new_epochs
from agent.hub.registrar.stretch import Stretch, stretch_at_start
from agent.jetstream import RawMessage, StreamInfo
from agent.jetstream.info import CopyStatus
from tests.unit.leaf.link.stores import HubStore

CLS = "normal"


def begin(hub: HubStore, now: float) -> None:
    """The hub's server was away: the record is read back."""
    if hub.leaf is None:
        return
    record, info = hub.leaf.classes[CLS], _info(hub)
    held = None
    if record.stream_created == hub.created:
        held = held_at_start(record.held, _state(hub, record), info)
        record = known_at_start(record, info)
    record = msgspec.structs.replace(record, held=held)
    hub.stretch = stretch_at_start(record, now)
    _put(hub, record)


def note(hub: HubStore, now: float) -> None:
    """The look at the aggregate of each second."""
    if hub.stretch is not None and hub.subscribed:
        hub.stretch.settle(hub.cursor, now)
    elif hub.stretch is not None:
        hub.stretch.doubt(now)


def take_in(hub: HubStore, announce: Announce) -> None:
    """Bring the record up to date, and have the source follow the announced epoch."""
    place = AggregateRef(hub.name, hub.created, hub.last)
    known, hub.leaf = hub.leaf, admitted(announce, hub.leaf, {CLS: place}, "", hub.boot)
    if new_epochs(hub.leaf, known):
        hub.sync()
    hub.follow(announce.classes[CLS].epoch)


def answer(hub: HubStore, announce: Announce, now: float) -> ClassAnswer:
    """The answer to an announcement that was taken in."""
    record, checkpoint = _look(hub), announce.checkpoint.get(CLS)
    agrees = None if checkpoint is None else _agreed(hub, record, announce.domain, checkpoint)
    certain = is_certain(record, _state(hub, record), _info(hub), hub.noted)
    acked = announce.classes[CLS].acked
    stretch = _read(hub, record, now)
    whole = stretch.covers(record.held)
    record = lacking(record, acked, checkpoint if agrees else None, certain=certain, whole=whole)
    gap = stretch.lost(announce.classes[CLS].first, now)
    if gap is not None and not record.lost:
        record = skipped(record, gap.first, gap.last, gap.before)
    fallback = None
    if (agrees is False or record.lost) and record.proposed is not None:
        fallback = record.proposed if _agreed(hub, record, announce.domain, record.proposed) else None
    batch = None
    if record.held is not None and not record.held.message_id:
        found = hub.newest(lambda row: row.leaf_seq and row.message)
        batch = StoredMessage(found[1].leaf_seq, found[1].message, found[0]) if found else None
    answer = class_answer(record, "flowing", agrees, batch, certain=certain, fallback=fallback)
    synced = min(hub.synced, stretch.whole_to)
    newest = hub.proposals.synced(announce.domain, CLS, record.epoch, answer.checkpoint, synced)
    answer = bounded(answer, record.held, newest, synced, whole=whole)
    _put(hub, agreeing(record, checkpoint, agrees, answer))
    return answer


def purge(hub: HubStore, now: float) -> None:
    """What of the aggregate is on disk is in the table, and goes; what was held of the leaf is stored
    before."""
    limit = hub.synced
    if hub.leaf is not None:
        stretch = _read(hub, _look(hub), now)
        limit = min(limit, stretch.may_purge_to(now))
        record = _compared(hub, _look(hub))
        unsure = not is_certain(record, _state(hub, record), _info(hub), hub.noted)
        if record.held is not None and not unsure and not record.lost:
            stretch.ended(record.held, hub.last)
        _put(hub, msgspec.structs.replace(record, unsure=unsure))
    hub.noted, hub.first = hub.last, max(hub.first, limit + 1)


def _read(hub: HubStore, record: ClassRecord, now: float) -> Stretch:
    """How far the epoch is there without a gap, once the aggregate was read as far as that is in doubt."""
    if hub.stretch is None or hub.stretch.epoch != record.epoch:
        hub.stretch = Stretch(record.epoch, 0, record.since)
    stretch, held = hub.stretch, record.held
    if held is None or record.lost:
        return stretch
    if stretch.doubt_until is not None and held.seq > stretch.seq:
        if stretch.hub_seq + 1 < hub.first:
            stretch.seq = 0
        for seq in range(max(stretch.hub_seq + 1, hub.first), hub.last + 1):
            row = hub.rows[seq - 1]
            if row.leaf_seq:
                place = Checkpoint(row.leaf_seq, row.message, hub.name, seq)
                stretch.take(row.leaf_seq, row.message, place, now)
    if stretch.doubt_until is None or stretch.reached(held, hub.first):
        stretch.read(held, hub.name)
    return stretch


def _compared(hub: HubStore, record: ClassRecord) -> ClassRecord:
    """The record, without what the messages that go contradict."""
    assert hub.leaf is not None
    for known in () if record.lost else remembered(record):
        message = _message(hub, known.hub_seq) if known.hub_seq <= hub.synced else None
        if message is not None and not names(known, message, leaf_stream(hub.leaf.domain, CLS)):
            record = contradicted(record, known)
    return record


def _look(hub: HubStore) -> ClassRecord:
    """The record with what the hub holds."""
    assert hub.leaf is not None
    record, newest = hub.leaf.classes[CLS], None
    state, found = _state(hub, record), hub.newest(lambda row: row.leaf_seq)
    if found is not None:
        newest = StoredMessage(found[1].leaf_seq, found[1].message, found[0])
    return msgspec.structs.replace(record, held=held_now(record.held, state, newest, _info(hub)))


def _put(hub: HubStore, record: ClassRecord) -> None:
    assert hub.leaf is not None
    hub.leaf = msgspec.structs.replace(hub.leaf, classes={CLS: record})


def _state(hub: HubStore, record: ClassRecord) -> CopyStatus | None:
    if hub.epoch != record.epoch:
        return None
    return CopyStatus(hub.cursor, 0.1, consumer=link_consumer(hub.epoch))


def _agreed(hub: HubStore, record: ClassRecord, domain: str, checkpoint: Checkpoint) -> bool | None:
    stream, message = leaf_stream(domain, CLS), _message(hub, checkpoint.hub_seq)
    return agreed(checkpoint, stream, record, _info(hub), message)


def _message(hub: HubStore, seq: int) -> RawMessage | None:
    if not hub.first <= seq <= hub.last:
        return None
    assert hub.leaf is not None
    row = hub.rows[seq - 1]
    name = leaf_stream(hub.leaf.domain, CLS) if row.leaf_seq else "TEL_other_normal"
    headers = {H_SOURCE: f"{name}:x:C=y {row.leaf_seq} > > tel", H_MESSAGE_ID: row.message}
    return RawMessage(seq, "tel", headers, b"", "")


def _info(hub: HubStore) -> StreamInfo:
    return StreamInfo(hub.name, hub.created, hub.first, hub.last, hub.last - hub.first + 1, 0, {}, [])
