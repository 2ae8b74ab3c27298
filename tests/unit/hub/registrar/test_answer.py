"""What a leaf is told: the cursor may be too low, never too high."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.contract import H_MESSAGE_ID, H_SOURCE, Checkpoint
from agent.hub.registrar.answer import (
    StoredMessage,
    agreed,
    agreeing,
    class_answer,
    class_state,
    held_at_start,
    held_now,
    is_certain,
    known_at_start,
    lacking,
    proposal,
    stored,
)
from agent.hub.registrar.records import ClassRecord, HubPosition
from agent.jetstream import RawMessage, StreamInfo
from agent.jetstream.info import CopyStatus

STREAM = "TEL_a_normal"
CREATED = "2026-01-01T00:00:00Z"


def info(last: int = 100, first: int = 1, size: int = 0) -> StreamInfo:
    return StreamInfo("TELEMETRY_0", CREATED, first, last, 0, size, {"max_bytes": 2**30}, [])


def message(leaf_seq: int, message_id: str, hub_seq: int, stream: str = STREAM) -> RawMessage:
    headers = {H_SOURCE: f"{stream}:x:C=y {leaf_seq} > > tel.a.normal.d.m", H_MESSAGE_ID: message_id}
    return RawMessage(hub_seq, "tel.a.normal.d.m", headers, b"", CREATED)


def record(held: HubPosition | None = None, checkpoint: Checkpoint | None = None) -> ClassRecord:
    return ClassRecord("0000000000000", CREATED, "TELEMETRY_0", CREATED, held, checkpoint)


@pytest.mark.parametrize(
    ("held", "seq", "newest", "expected"),
    [
        (None, 0, None, None),
        (None, 0, StoredMessage(9, "id", 50), None),
        (None, 9, StoredMessage(9, "id", 50), HubPosition(9, "id", 50, 100)),
        (None, 9, StoredMessage(11, "id", 101), HubPosition(11, "id", 101, 101)),
        (None, 9, StoredMessage(7, "id", 50), HubPosition(9, "", 0, 100)),
        (None, 9, None, HubPosition(9, "", 0, 100)),
        (HubPosition(9, "id", 50, 60), 0, None, HubPosition(9, "id", 50, 60)),
        (HubPosition(9, "id", 50, 60), 9, None, HubPosition(9, "id", 50, 60)),
        (HubPosition(9, "", 0, 60), 9, StoredMessage(9, "id", 50), HubPosition(9, "id", 50, 100)),
        (HubPosition(9, "", 0, 60), 9, StoredMessage(9, "", 50), HubPosition(9, "", 50, 100)),
        (HubPosition(9, "id", 50, 60), 12, None, HubPosition(12, "", 0, 100)),
    ],
    ids=[
        "nothing yet",
        "a message of an epoch before",
        "the message at the cursor",
        "a message newer than the look",
        "an older message only",
        "the message was purged",
        "the source lost its sequence",
        "nothing new",
        "the message is found later",
        "the message is found later, and has no id",
        "gone on, the message was purged",
    ],
)
def test_what_the_hub_holds_is_told_from_its_source_and_the_newest_message(
    held: HubPosition | None, seq: int, newest: StoredMessage | None, expected: HubPosition | None
) -> None:
    assert held_now(held, CopyStatus(seq, 0.1), newest, info()) == expected


seqs = st.integers(0, 200)
helds = st.none() | st.builds(HubPosition, seqs, st.sampled_from(["", "id"]), seqs, seqs)


@given(held=helds, seq=seqs, newest=st.none() | st.builds(StoredMessage, seqs, st.just("id"), seqs))
def test_a_cursor_is_never_above_what_the_source_or_the_aggregate_shows_nor_below_what_was_held(
    held: HubPosition | None, seq: int, newest: StoredMessage | None
) -> None:
    now = held_now(held, CopyStatus(seq, 0.1), newest, info())
    shown = [0, held.seq if held else 0, seq, newest.leaf_seq if newest else 0]
    cursor = now.seq if now else 0
    assert max(seq, held.seq if held else 0) <= cursor <= max(shown)


@given(held=helds, seq=seqs, last=seqs)
def test_after_the_hub_was_away_nothing_is_held_that_its_stream_contradicts(
    held: HubPosition | None, seq: int, last: int
) -> None:
    now = held_at_start(held, CopyStatus(seq, None), info(last))
    if now is not None:
        assert now == held
        assert last >= now.last
        assert seq in (0, now.seq) or seq > now.seq


def test_only_a_message_with_an_id_is_proposed_as_a_checkpoint() -> None:
    assert proposal(HubPosition(9, "id", 50, 60), "TELEMETRY_0") == Checkpoint(9, "id", "TELEMETRY_0", 50)
    assert proposal(HubPosition(9, "", 50, 60), "TELEMETRY_0") is None
    assert proposal(None, "TELEMETRY_0") is None


ANNOUNCED = Checkpoint(9, "id", "TELEMETRY_0", 50)


@pytest.mark.parametrize(
    ("known", "last", "at", "expected"),
    [
        (record(), 100, message(9, "id", 50), True),
        (record(), 100, message(9, "other", 50), False),
        (record(), 100, message(8, "id", 50), False),
        (record(), 100, message(9, "id", 50, "TEL_b_normal"), False),
        (record(), 49, None, False),
        (record(), 100, None, None),
        (record(checkpoint=ANNOUNCED), 100, None, True),
        (record(held=HubPosition(9, "id", 50, 60)), 100, None, True),
        (record(checkpoint=Checkpoint(8, "id", "TELEMETRY_0", 49)), 100, None, None),
        (record(checkpoint=ANNOUNCED), 49, None, False),
        (record(checkpoint=ANNOUNCED), 100, message(9, "other", 50), False),
    ],
    ids=[
        "held",
        "another id",
        "another sequence",
        "another leaf",
        "the hub ends before",
        "purged, not remembered",
        "purged, agreed before",
        "purged, proposed before",
        "purged, another one remembered",
        "remembered, but the hub ends before",
        "remembered, but another message is there",
    ],
)
def test_a_checkpoint_is_compared_with_the_message_and_only_then_with_what_is_remembered(
    known: ClassRecord, last: int, at: RawMessage | None, expected: bool | None
) -> None:
    assert agreed(ANNOUNCED, STREAM, known, info(last), at) is expected


NEWER, OLDER = Checkpoint(12, "id", "TELEMETRY_0", 60), Checkpoint(8, "id", "TELEMETRY_0", 40)


@pytest.mark.parametrize(
    ("checkpoint", "proposed", "cut", "expected"),
    [
        (None, ANNOUNCED, None, True),
        (None, NEWER, None, True),
        (NEWER, None, None, True),
        (NEWER, NEWER, 20, True),
        (OLDER, None, None, None),
        (OLDER, OLDER, None, False),
        (None, Checkpoint(8, "id", "TELEMETRY_0", 60), None, False),
        (None, Checkpoint(12, "id", "TELEMETRY_0", 40), None, False),
        (None, Checkpoint(12, "id", "TELEMETRY_7", 60), None, False),
        (None, None, 49, False),
        (None, None, 0, False),
        (None, None, 50, None),
    ],
    ids=[
        "proposed",
        "a newer one was proposed",
        "a newer one was agreed on",
        "newer than where the aggregate was cut",
        "a record that remembers nothing",
        "the record was restored from before it",
        "a newer one at the hub, of an older message",
        "an older one at the hub, of a newer message",
        "of another aggregate",
        "the aggregate was restored to before it",
        "the record is new to it",
        "the aggregate was restored to after it",
    ],
)
def test_a_purged_checkpoint_holds_as_far_as_the_record_knows(
    checkpoint: Checkpoint | None, proposed: Checkpoint | None, cut: int | None, expected: bool | None
) -> None:
    known = msgspec.structs.replace(record(checkpoint=checkpoint), proposed=proposed, cut=cut)
    assert agreed(ANNOUNCED, STREAM, known, info(first=90), None) is expected


def test_a_checkpoint_is_remembered_once_nothing_speaks_against_it() -> None:
    known = record(checkpoint=OLDER)
    answer = class_answer(record(held=HubPosition(12, "id", 60, 60)), "flowing", True)
    assert answer.checkpoint == NEWER
    both = agreeing(known, ANNOUNCED, True, answer)
    assert (both.checkpoint, both.proposed) == (ANNOUNCED, NEWER)
    first = agreeing(known, None, None, answer)
    assert (first.checkpoint, first.proposed) == (OLDER, NEWER)
    assert agreeing(both, ANNOUNCED, True, class_answer(known, "linking", True)) == both
    assert agreeing(known, ANNOUNCED, False, answer) == known
    lost = msgspec.structs.replace(known, lost="TELEMETRY_0 was recreated")
    assert agreeing(lost, ANNOUNCED, True, answer) == lost


def test_what_a_hub_lacks_of_what_it_acknowledged_is_remembered_with_the_place_up_to_which_it_holds_all() -> (
    None
):
    known = record(held=HubPosition(12, "id", 60, 60))
    assert lacking(known, 12, OLDER, certain=True) == known
    assert lacking(known, 13, OLDER, certain=False) == known, "its server lost count"
    lost = lacking(known, 13, OLDER, certain=True)
    assert (lost.lost, lost.proposed) == ("the hub holds up to 12 of 13 that it has acknowledged", NEWER)
    assert lacking(lost, 20, None, certain=True) == lost
    nothing = lacking(record(), 1, OLDER, certain=True)
    assert nothing.proposed == OLDER, "both still hold the checkpoint"
    device = lacking(
        msgspec.structs.replace(record(held=HubPosition(12, "", 0, 60)), proposed=OLDER),
        13,
        None,
        certain=True,
    )
    assert device.proposed == OLDER, "a message without an id is no place"


@pytest.mark.parametrize(
    ("state", "replicas", "listed", "certain"),
    [
        (CopyStatus(0, None), 3, True, False),
        (None, 3, False, False),
        (None, 3, True, True),
        (CopyStatus(0, 0.1), 3, True, True),
        (CopyStatus(9, None), 3, True, True),
        (CopyStatus(0, None), 1, True, True),
    ],
    ids=[
        "the leader has not searched yet",
        "the leader has not prepared its sources yet",
        "the source is not there",
        "the leaf has answered",
        "the leader has found a sequence",
        "one server searches before it answers",
    ],
)
def test_a_new_leader_of_a_cluster_proves_no_loss_before_it_has_searched_its_sources(
    state: CopyStatus | None, replicas: int, listed: bool, certain: bool
) -> None:
    source = {"name": STREAM, "active": -1}
    config = {"num_replicas": replicas, "sources": [{"name": STREAM}]}
    led = msgspec.structs.replace(info(), config=config, sources=[source] if listed else [])
    known = record(HubPosition(4, "id", 4, 4))
    seen = is_certain(known, state, led)
    assert seen is certain
    assert bool(lacking(known, 30, None, certain=seen).lost) is certain


def test_a_record_that_knows_more_than_its_aggregate_holds_was_not_restored_with_it() -> None:
    known = msgspec.structs.replace(record(checkpoint=ANNOUNCED), proposed=NEWER)
    assert known_at_start(known, info(60)) == known
    cut = known_at_start(known, info(55))
    assert (cut.checkpoint, cut.proposed, cut.cut) == (ANNOUNCED, None, 55)
    cut = known_at_start(known, info(45))
    assert (cut.checkpoint, cut.proposed, cut.cut) == (None, None, 45)


def test_a_lost_epoch_is_told_with_the_place_to_fall_back_to() -> None:
    lost = msgspec.structs.replace(
        record(held=HubPosition(12, "id", 60, 60)), lost="TELEMETRY_0 was recreated"
    )
    answer = class_answer(lost, "flowing", True, fallback=OLDER)
    assert (answer.cursor, answer.agreed, answer.fallback) == (0, False, OLDER)


def test_a_checkpoint_in_another_aggregate_does_not_hold_so_that_the_epoch_begins_anew() -> None:
    other = Checkpoint(9, "id", "TELEMETRY_7", 50)
    assert agreed(other, STREAM, record(checkpoint=other), info(), None) is False


def test_a_checkpoint_in_the_aggregate_of_the_cell_before_is_neither_right_nor_wrong() -> None:
    other = Checkpoint(9, "id", "TELEMETRY_0", 50)
    moved = msgspec.structs.replace(record(), before="TELEMETRY_0")
    assert agreed(other, STREAM, moved, info(), None) is None


def test_a_message_of_another_stream_or_without_an_origin_says_nothing_of_the_leaf() -> None:
    assert stored(message(9, "id", 50), STREAM) == StoredMessage(9, "id", 50)
    assert stored(message(9, "id", 50, "TEL_b_normal"), STREAM) is None
    assert stored(RawMessage(1, "tel.a.normal.d.m", {}, b"", CREATED), STREAM) is None
    assert stored(None, STREAM) is None


@pytest.mark.parametrize(
    ("active", "size", "contested", "expected"),
    [
        (0.5, 0, False, "flowing"),
        (None, 0, False, "linking"),
        (9.0, 0, False, "linking"),
        (0.5, 2**30, False, "full"),
        (0.5, 0, True, "contested"),
    ],
)
def test_the_state_is_one_word(active: float | None, size: int, contested: bool, expected: str) -> None:
    assert class_state(CopyStatus(1, active), info(size=size), contested=contested) == expected


def test_a_source_of_which_its_server_complains_does_not_flow() -> None:
    stalled = CopyStatus(50, 0.5, "stalled on flow control", 10228)
    assert class_state(stalled, info(), contested=False) == "linking"


def test_of_an_epoch_that_is_lost_nothing_is_held_or_agreed() -> None:
    lost = msgspec.structs.replace(record(HubPosition(9, "id", 50, 60)), lost="the aggregate was made anew")
    answer = class_answer(lost, "flowing", True)
    assert (answer.cursor, answer.message_id, answer.agreed, answer.checkpoint) == (0, "", False, None)
    assert answer.certain


def test_an_answer_without_anything_held_has_the_cursor_nought() -> None:
    answer = class_answer(record(), "linking", None)
    assert (answer.cursor, answer.message_id, answer.checkpoint) == (0, "", None)


def test_where_a_device_spoke_last_the_newest_batch_is_proposed() -> None:
    held = HubPosition(seq=9, message_id="", hub_seq=0, last=20)
    answer = class_answer(record(held), "flowing", None, StoredMessage(7, "run-normal-3", 18))
    assert (answer.cursor, answer.message_id) == (9, "")
    assert answer.checkpoint == Checkpoint(7, "run-normal-3", "TELEMETRY_0", 18)
    assert class_answer(record(held), "flowing", None, StoredMessage(7, "", 18)).checkpoint is None


def test_a_batch_behind_the_cursor_came_through_an_epoch_before_and_is_not_proposed() -> None:
    held = HubPosition(seq=9, message_id="", hub_seq=0, last=20)
    answer = class_answer(record(held), "flowing", None, StoredMessage(10, "run-normal-3", 18))
    assert (answer.cursor, answer.checkpoint) == (9, None)
