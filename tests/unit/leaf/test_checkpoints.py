"""The checkpoints before the newest: how many are kept, and what is left of them when an epoch begins."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from agent.contract import Checkpoint, new_run
from agent.leaf.state import (
    RETENTION,
    SPACING_SECONDS,
    VERSION,
    CheckpointLog,
    Checkpoints,
    State,
    earlier_checkpoints,
    forget_checkpoints,
    with_checkpoint,
)
from tests.harness.examples import costly

RUN, OTHER = new_run(0), new_run(1)
CLS = "normal"
MOST = sum(count for _, count in RETENTION)


def checkpoint(number: int, run: str = RUN) -> Checkpoint:
    """The one of this number: a batch now, a ledger record then."""
    kind = "ledger-" if number % 7 == 0 else ""
    return Checkpoint(10 * number, f"{run}-normal-{kind}{number}", f"TELEMETRY_{number % 2}", 30 * number)


def row(count: int, groups: list[Checkpoints] | None = None, start: int = 1) -> list[Checkpoints]:
    """What is retained after the checkpoints from `start` to `count`, in addition to earlier `groups`."""
    groups = groups or []
    for number in range(start, count + 1):
        groups = with_checkpoint(groups, checkpoint(number, RUN if number < 500 else OTHER))
    return groups


def hours(end: int) -> list[Checkpoints]:
    """What is retained of more than a week, but for the last hour: every 360th."""
    hourly = [(number, checkpoint(number, OTHER)) for number in range(36_000, end + 1, 360)]
    return [
        Checkpoints("", hour.hub_stream, [(number, hour.leaf_seq, hour.message_id, hour.hub_seq)])
        for number, hour in hourly
    ]


def state(groups: list[Checkpoints]) -> State:
    """A state with these, and the newest of them."""
    known = earlier_checkpoints(groups)
    return State(VERSION, "m", "edge-1", earlier={CLS: groups}, checkpoint={CLS: known[-1]} if known else {})


def test_the_older_they_are_the_sparser_they_stand() -> None:
    groups: list[Checkpoints] = []
    for count in range(3001):
        retained = earlier_checkpoints(groups)
        numbers = [each.leaf_seq // 10 for each in retained]
        assert retained == [checkpoint(number, RUN if number < 500 else OTHER) for number in numbers]
        assert len(retained) <= MOST
        for each, kept in RETENTION:
            reached = range(max(0, count - each * kept) // each + 1, count // each + 1)
            assert {each * number for number in reached} <= set(numbers)
        groups = row(count + 1, groups, count + 1)


def test_they_take_little_room() -> None:
    groups = row(100_000, hours(98_640), 98_641)
    assert len(earlier_checkpoints(groups)) > 0.9 * MOST
    assert len(msgspec.json.encode(groups)) < 40 * MOST


def test_one_that_is_agreed_on_again_or_soon_after_is_not_noted_again() -> None:
    current = state([])
    log = CheckpointLog(current)
    log.agree(CLS, checkpoint(1), 100.0)
    log.agree(CLS, checkpoint(2), 100.0 + SPACING_SECONDS / 2)
    assert (current.checkpoint[CLS], earlier_checkpoints(current.earlier[CLS])) == (
        checkpoint(2),
        [checkpoint(1)],
    )
    for now in (100.0 + SPACING_SECONDS, 100.0 + 2 * SPACING_SECONDS):
        log.agree(CLS, checkpoint(3), now)
    assert earlier_checkpoints(current.earlier[CLS]) == [checkpoint(1), checkpoint(3)]


@costly(30)
@given(count=st.integers(0, 800), start=st.integers(1, 9000))
def test_of_an_epoch_only_what_stands_before_it_stays_agreed_on(count: int, start: int) -> None:
    current = state(row(count))
    before = earlier_checkpoints(current.earlier[CLS])
    forget_checkpoints(current, CLS, start)
    left = [one for one in before if one.leaf_seq < start]
    assert earlier_checkpoints(current.earlier[CLS]) == left
    assert current.checkpoint.get(CLS) == (left[-1] if left else None)


def test_the_newest_stays_where_an_epoch_begins_after_it() -> None:
    current = state(row(3))
    current.checkpoint[CLS] = checkpoint(4)
    forget_checkpoints(current, CLS, 41)
    assert current.checkpoint[CLS] == checkpoint(4)
    forget_checkpoints(current, CLS, 40)
    assert current.checkpoint[CLS] == checkpoint(3)
    forget_checkpoints(current, "other", 1)
    assert "other" not in current.checkpoint


def test_a_state_of_an_agent_that_kept_none_is_read() -> None:
    data = msgspec.json.encode(State(VERSION, "m", "edge-1", checkpoint={CLS: checkpoint(1)}))
    older = data.replace(b',"earlier":{}', b"")
    assert older != data
    assert msgspec.json.decode(older, type=State).earlier == {}
