from __future__ import annotations

import pytest

from agent.contract import MAX_INT, Checkpoint
from agent.hub.registrar.records import ClassRecord, HubPosition
from agent.hub.registrar.stretch import ANSWER_SECONDS, SETTLE_SECONDS, Stretch, follows, stretch_at_start

AGGREGATE = "TELEMETRY_0"
LATER = 10.0 + ANSWER_SECONDS + 0.1


def place(seq: int) -> Checkpoint:
    return Checkpoint(seq, f"id-{seq}", AGGREGATE, 100 + seq)


def stretch(seq: int, *read: int) -> Stretch:
    """One that is in doubt behind a sequence, and what was read behind it at 10.0."""
    found = Stretch("e", seq, 100 + seq, newest=place(seq))
    found.doubt(0.0)
    for one in read:
        found.take(one, f"id-{one}", place(one), 10.0)
    return found


@pytest.mark.parametrize(
    ("first", "asked", "is_lost"),
    [
        (1, LATER, True),
        (8, LATER, True),  # the leaf has discarded 6 and 7, and holds 8
        (9, LATER, False),  # it has discarded all of them
        (1, 10.1, False),  # that may have been announced before 6 to 8 were discarded
    ],
)
def test_what_the_leaf_still_holds_of_a_gap_by_a_later_announcement_is_lost(
    first: int, asked: float, is_lost: bool
) -> None:
    found = stretch(5, 9, 10)
    gap = found.lost(first, asked)
    assert (gap is not None) is is_lost
    assert gap is None or (gap.first, gap.last, gap.before) == (6, 8, place(5))


def test_nothing_behind_a_gap_is_whole_until_it_is_explained() -> None:
    found = stretch(5, 6, 9)
    assert found.whole_to == 106
    assert found.lost(9, LATER) is None
    assert found.whole_to == 109


def test_what_comes_again_fills_its_gap() -> None:
    assert stretch(5, 9, 4, 5, 6, 7, 8).gaps == []
    assert [(gap.first, gap.last) for gap in stretch(5, 9, 6, 7).gaps] == [(8, 8)]


def test_only_a_message_stored_after_the_server_has_asked_ends_the_doubt() -> None:
    found = stretch(5, 6)
    held = HubPosition(6, "id-6", 106, 106)
    found.settle(6, SETTLE_SECONDS - 0.1)
    found.settle(6, SETTLE_SECONDS)
    found.read(held, AGGREGATE)
    assert found.whole_to == 106
    found.take(7, "id-7", place(7), 20.0)
    found.read(HubPosition(7, "id-7", 107, 107), AGGREGATE)
    assert found.whole_to == MAX_INT


def test_a_source_that_falls_silent_is_in_doubt_again() -> None:
    found = stretch(5)
    found.settle(5, SETTLE_SECONDS)
    found.doubt(SETTLE_SECONDS)
    found.take(6, "id-6", place(6), 11.0)
    found.read(HubPosition(6, "id-6", 106, 106), AGGREGATE)
    assert found.whole_to == 106


def test_a_registrar_that_starts_trusts_no_more_than_the_newest_checkpoint() -> None:
    """It is the newest that was read; what the hub holds by the record may stand behind a gap."""
    record = ClassRecord("e", "made", AGGREGATE, "now", proposed=place(5), checkpoint=place(4))
    behind = ClassRecord("e", "made", AGGREGATE, "now", HubPosition(9, "id-9", 109, 150), proposed=place(5))
    there = ClassRecord("e", "made", AGGREGATE, "now", HubPosition(5, "id-5", 105, 150), proposed=place(5))
    starts = [stretch_at_start(one, 0.0) for one in (record, behind, there)]
    assert [(one.seq, one.hub_seq) for one in starts] == [(5, 105), (5, 105), (5, 150)]


def test_a_checkpoint_of_an_earlier_epoch_says_nothing_of_this_one() -> None:
    """The leaf's store was lost, and its sequences begin again."""
    old = Checkpoint(5_000_000, "id", AGGREGATE, 90)
    record = ClassRecord("e", "made", AGGREGATE, "now", checkpoint=old, proposed=old, since=100)
    started = stretch_at_start(record, 0.0)
    assert (started.seq, started.hub_seq) == (0, 100)


@pytest.mark.parametrize(
    ("hub_seq", "first", "is_whole"),
    [(109, 1, False), (109, 110, True), (0, 1, False), (0, 106, False), (0, 107, True)],
)
def test_a_server_that_lags_behind_does_not_show_what_the_hub_holds(
    hub_seq: int, first: int, is_whole: bool
) -> None:
    """Its copy ends before the message that another server has, or has received only; one that is purged
    can't be shown. Where no more is purged than was read, a message without a place is not stored."""
    assert stretch(5).reached(HubPosition(9, "id-9", hub_seq, 109), first) is is_whole


@pytest.mark.parametrize("is_in_doubt", [True, False])
def test_what_a_server_has_received_and_no_store_has_shown_hides_no_gap(is_in_doubt: bool) -> None:
    """Another server leads before it was stored, and takes it for held."""
    found, received = stretch(5), HubPosition(6, "", 0, 120)
    if not is_in_doubt:
        found.doubt_until = None
        found.read(received, AGGREGATE)
        found.doubt(20.0)
    assert not follows(received, found)
    found.take(7, "id-7", place(7), 30.0)
    assert [(gap.first, gap.last) for gap in found.gaps] == [(6, 6)]
