"""Where a local program goes on in a mirror that was recreated."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.leaf.link.command_mirror.positions import (
    HELD_UNTIL,
    LEAVING_UNTIL,
    ConsumerPosition,
    ConsumerPositions,
    Stage,
    acknowledged_above,
    is_held,
    is_leaving,
    kept_config,
    movable,
    parse_positions,
    paused_until,
    placed_at,
    placement,
    superfluous,
)

OLD = [(seq, 100 + seq) for seq in range(1, 11)]
CONFIG = {"durable_name": "plc", "name": "plc", "ack_policy": "explicit"}


def start(floor: int, commands: list[tuple[int, int]], there: dict[int, int]) -> int:
    """From where a consumer goes on that has acknowledged all up to `floor`."""
    return placement(ConsumerPosition(CONFIG, floor, commands), there, there).start


def test_in_the_same_history_it_goes_on_after_what_it_has_acknowledged() -> None:
    assert start(7, OLD, dict(OLD)) == 8
    assert start(10, OLD, dict(OLD)) == 11


def test_what_was_delivered_and_not_acknowledged_comes_again() -> None:
    assert start(0, OLD, dict(OLD)) == 1


def test_sequences_that_stand_for_other_commands_are_all_new() -> None:
    there = dict(OLD[:4]) | {seq: 900 + seq for seq in range(5, 20)}
    assert start(7, OLD, there) == 5


def test_a_stream_that_begins_again_is_new_from_its_first_command() -> None:
    assert start(7, OLD, {1: 901, 2: 902}) == 1


def test_commands_that_the_hub_has_dropped_since_do_not_bring_back_others() -> None:
    assert start(7, OLD, dict(OLD[5:])) == 8
    assert start(7, OLD, dict(OLD[8:])) == 9
    assert start(7, OLD, {}) == 1


def test_one_command_is_enough_while_the_hub_still_has_it() -> None:
    assert start(7, [OLD[6]], dict(OLD)) == 8
    assert start(7, [OLD[6]], dict(OLD[:5])) == 1
    assert start(7, [], dict(OLD)) == 1


def test_the_command_that_is_known_may_be_for_another() -> None:
    place = ConsumerPosition(CONFIG, 8, [OLD[6]])
    own = {seq: time for seq, time in OLD if seq % 2 == 0}
    assert placement(place, own, dict(OLD)).start == 8


def test_what_was_not_read_and_is_not_there_any_more_is_named() -> None:
    place = ConsumerPosition(CONFIG, 7, OLD)
    assert placement(place, dict(OLD), {}).unread == []
    assert placement(place, dict(OLD[:8]) | {9: 999}, {}).unread == [9, 10]


@pytest.mark.parametrize(
    ("pending", "limit", "above"), [(1, -1, [9, 10]), (1, 5, []), (2, -1, []), (3, -1, []), (0, -1, [])]
)
def test_of_what_is_acknowledged_out_of_order_is_known_what_is_above_a_single_one(
    pending: int, limit: int, above: list[int]
) -> None:
    commands = [*OLD, (11, 111)]
    place = ConsumerPosition({**CONFIG, "max_deliver": limit}, 7, commands)
    assert acknowledged_above(place, 10, pending) == above


def test_only_the_command_that_is_not_acknowledged_comes_again() -> None:
    found = placement(ConsumerPosition(CONFIG, 7, OLD, [9, 10]), dict(OLD) | {11: 111}, dict(OLD) | {11: 111})
    assert (found.start, set(found.wanted), found.unread) == (8, {8, 11}, [])
    assert superfluous([found]) == {9, 10}
    assert placement(ConsumerPosition(CONFIG, 0, OLD[:3], [2, 3]), dict(OLD), dict(OLD)).wanted == {
        1,
        *range(4, 11),
    }


def test_what_was_taken_out_of_the_mirror_was_acknowledged() -> None:
    place = ConsumerPosition(CONFIG, 6, [*OLD[:4], OLD[5]])
    assert placement(place, dict(OLD), dict(OLD), [OLD[4], OLD[7]]).wanted == {7, 9, 10}


def test_what_one_consumer_needs_stays_for_it() -> None:
    there = dict(OLD[:4]) | {5: 905, 6: 906}
    mixed = [*OLD[:5], (6, 906)]
    quick, slow = (placement(ConsumerPosition(CONFIG, floor, mixed), there, there) for floor in (6, 3))
    assert (quick.start, set(quick.redelivered), slow.start, set(slow.redelivered)) == (5, {6}, 4, set())
    assert superfluous([quick]) == {6}
    assert superfluous([quick, slow]) == set()


@st.composite
def histories(draw: st.DrawFn) -> tuple[ConsumerPosition, dict[int, int], set[tuple[int, int]]]:
    """A place in a mirror, what the recreated mirror holds, and the commands that were acknowledged. The hub
    was restored: it lost some commands and has others there; of those the old mirror took what came after its
    own last one. It may have dropped any since."""
    shared, lost, new = (draw(st.integers(0, 12)) for _ in range(3))
    gaps = list(accumulate(draw(st.lists(st.integers(1, 3), min_size=40, max_size=40))))
    before = [(seq, 1_000 + seq) for seq in gaps[: shared + lost]]
    after = before[:shared] + [(seq, 2_000 + seq) for seq in gaps[shared : shared + new]]
    mixed = before + [one for one in after[shared + lost :] if draw(st.booleans())]
    floor = draw(st.sampled_from([0, *(seq for seq, _ in mixed)]))
    there = {seq: time for seq, time in after if draw(st.integers(0, 3))}
    return ConsumerPosition(CONFIG, floor, mixed), there, {one for one in mixed if one[0] <= floor}


@given(histories())
def test_no_command_is_skipped_and_none_that_was_acknowledged_comes_again(
    history: tuple[ConsumerPosition, dict[int, int], set[tuple[int, int]]],
) -> None:
    place, there, acknowledged = history
    found = placement(place, there, there)
    left = there.keys() - superfluous([found])
    delivered = {(seq, time) for seq, time in there.items() if seq >= found.start and seq in left}
    assert delivered == set(there.items()) - acknowledged


def test_the_file_is_read_as_it_was_written() -> None:
    places = ConsumerPositions(
        stage=Stage.HELD, mirror="2026", consumers={"plc": ConsumerPosition(CONFIG, 7, OLD)}
    )
    assert parse_positions(places.encode()) == places
    assert places.top == 10


@pytest.mark.parametrize("data", [b"", b"[]", b'{"version":2}', b'{"stage":"other"}', b"\xff"])
def test_a_damaged_file_or_one_of_another_version_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        parse_positions(data)


def test_a_configuration_is_kept_as_its_program_gave_it() -> None:
    metadata = {"_nats.ver": "2.15.1", "_nats.level": "5"}
    assert kept_config({**CONFIG, "metadata": metadata}) == CONFIG
    assert kept_config({**CONFIG, "metadata": {**metadata, "of": "plc"}}) == {
        **CONFIG,
        "metadata": {"of": "plc"},
    }


def test_a_consumer_without_a_place_is_told_from_one_that_its_owner_has_paused() -> None:
    own = {**CONFIG, "pause_until": "2026-11-22T10:00:00Z"}
    held, leaving = {**CONFIG, "pause_until": HELD_UNTIL}, {**CONFIG, "pause_until": LEAVING_UNTIL}
    every = (CONFIG, own, held, leaving)
    assert [is_held(one) for one in every] == [False, False, True, False]
    assert [is_leaving(one) for one in every] == [False, False, False, True]
    assert [paused_until(one) for one in every] == [None, own["pause_until"], None, None]


@pytest.mark.parametrize("policy", ["new", "last", "last_per_subject"])
def test_a_consumer_that_cannot_be_moved_begins_at_the_first_command(policy: str) -> None:
    began = {**CONFIG, "deliver_policy": policy}
    assert movable(began) == {**CONFIG, "deliver_policy": "by_start_sequence", "opt_start_seq": 1}
    for config in (CONFIG, {**CONFIG, "deliver_policy": "all"}, placed_at(CONFIG, 7)):
        assert movable(config) == config


def test_a_consumer_that_began_at_a_time_begins_at_its_place() -> None:
    began = {**CONFIG, "deliver_policy": "by_start_time", "opt_start_time": "2026-11-22T10:00:00Z"}
    assert placed_at(began, 5) == {**CONFIG, "deliver_policy": "by_start_sequence", "opt_start_seq": 5}
