from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.base.clock import Instant
from agent.contract import Clock, ContractError
from agent.leaf.commands import cursor as cursor_module
from agent.leaf.commands.cursor import (
    CommandCursor,
    CommandPosition,
    ExpiryVerdict,
    RecentCommands,
    judge_expiry,
    parse_position,
    unanswered,
)
from tests.harness.clocks import SECOND

STORED = 1_000_000.0
LAST = CommandPosition("first", "o", 5, 50, "e", "set")


def cursor_after(
    last: CommandPosition | None, created: str, origin: str = "p", remembered: bool = True
) -> CommandCursor:
    """A runner after `last`, which is among the recent commands where it is `remembered`."""
    recent = RecentCommands(40 if remembered else 0, [(5, 50, "e")] if remembered else [])
    cursor = CommandCursor(last, recent)
    cursor.enter(created, origin)
    return cursor


def test_a_leaf_that_ran_nothing_runs_all_from_the_beginning() -> None:
    cursor = cursor_after(None, "first")
    assert cursor.next == 1
    assert cursor.take(3, 30, "c", "ping") == CommandPosition("first", "p", 3, 30, "c", "ping")
    assert cursor.next == 4


def test_in_the_same_stream_the_sequence_decides_whatever_the_hubs_clock_says() -> None:
    cursor = cursor_after(LAST, "first")
    assert cursor.next == 6
    assert cursor.take(6, 10, "f", "ping") == CommandPosition("first", "p", 6, 50, "f", "ping")


def test_a_recreated_stream_is_searched_for_what_is_later() -> None:
    cursor = cursor_after(LAST, "second")
    assert cursor.next == 1
    assert cursor.take(1, 40, "x", "ping") is None
    assert cursor.take(2, 60, "y", "ping") == CommandPosition("second", "p", 2, 60, "y", "ping")
    assert cursor.take(3, 55, "z", "ping") == CommandPosition("second", "p", 3, 60, "z", "ping")


def test_what_follows_the_last_command_run_is_new_although_the_hubs_clock_went_back() -> None:
    cursor = cursor_after(LAST, "second")
    assert cursor.take(4, 20, "d", "ping") is None
    assert cursor.take(5, 50, "e", "set") is None
    assert cursor.take(6, 20, "f", "ping") == CommandPosition("second", "p", 6, 50, "f", "ping")


def test_what_stands_above_the_last_command_of_the_same_origin_is_new_whatever_the_clock_says() -> None:
    cursor = cursor_after(LAST, "second", origin="o")
    assert cursor.take(4, 20, "d", "ping") is None
    assert cursor.take(6, 20, "f", "ping") == CommandPosition("second", "o", 6, 50, "f", "ping")


def test_another_command_at_the_sequence_of_the_last_one_is_not_taken_for_it() -> None:
    cursor = cursor_after(LAST, "second", remembered=False)
    assert cursor.take(5, 45, "other", "set") is None
    assert cursor.take(6, 46, "f", "ping") is None
    cursor = cursor_after(LAST, "second")
    assert cursor.take(5, 45, "other", "set") is not None


def test_a_stream_recreated_while_the_agent_runs_is_entered_from_its_beginning() -> None:
    cursor = cursor_after(LAST, "first")
    cursor.take(6, 60, "f", "ping")
    cursor.enter("second", "p")
    assert cursor.next == 1
    assert cursor.take(1, 70, "g", "ping") is not None


def test_what_holds_nothing_of_ours_is_not_looked_through_again() -> None:
    cursor = cursor_after(LAST, "first")
    cursor.skip(90)
    assert cursor.next == 91
    cursor.skip(7)
    assert cursor.next == 91


EVENTS = (
    "run",
    "recreated",
    "restarted",
    "state lost",
    "origin",
    "restored",
    "mixed origin",
    "mixed restored",
)


@pytest.mark.parametrize("remembered", [256, 4])
@given(
    events=st.lists(st.tuples(st.integers(-9, 9), st.integers(1, 4), st.sampled_from(EVENTS)), max_size=40)
)
def test_no_command_is_run_twice_and_none_is_left_out_that_is_known_to_be_new(
    remembered: int, events: list[tuple[int, int, str]]
) -> None:
    """The hub's clock goes on, or back, before each command; between them the mirror is recreated, the agent
    restarted, or the hub's stream recreated or restored from an older copy. Where that is `mixed`, the mirror
    takes the end of the new history over that which it holds, before it is recreated."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cursor_module, "RECENT_COMMANDS", remembered)
        history = CommandHistory()
        for seconds, count, event in events:
            history.happen(event)
            history.send(seconds, count)
    assert len(set(history.run)) == len(history.run), "no command is run twice"
    if remembered > len(history.run) and not history.forgot:
        assert sorted(history.run, key=history.sent.index) == history.sent, "none is left out"


class CommandHistory:
    """A hub, a mirror and a runner, of which the state may be lost."""

    def __init__(self) -> None:
        self.clock = 10**6
        self.local = self.origin = 0
        self.hub: list[tuple[int, int, str]] = []
        self.mirror: list[tuple[int, int, str]] = []
        self.recent = RecentCommands()
        self.last: CommandPosition | None = None
        self.cursor = CommandCursor(None, self.recent)
        self.sent: list[str] = []
        self.run: list[str] = []
        self.forgot = False
        self.mixed = False

    def happen(self, event: str) -> None:
        self.mixed = event.startswith("mixed")
        match event.removeprefix("mixed "):
            case "recreated":
                self.local += 1
            case "restarted":
                self._restart()
            case "state lost":
                self.recent, self.forgot = RecentCommands(), True
                self._restart()
            case "origin":
                self.hub, self.origin = [], self.origin + 1
            case "restored":
                self.hub = self.hub[: len(self.hub) // 2]

    def send(self, seconds: int, count: int) -> None:
        for _ in range(count):
            self.clock += seconds or 1
            self.sent.append(f"c{len(self.sent)}")
            self.hub.append((len(self.hub) + 1, self.clock, self.sent[-1]))
        if self.mixed:
            top = self.mirror[-1][0] if self.mirror else 0
            self.mirror += self.hub[top:]
            self._read()
        if self.mixed or self.mirror != self.hub[: len(self.mirror)]:
            self.local += 1
        self.mirror = list(self.hub)
        self._read()

    def _restart(self) -> None:
        last = None if self.last is None else parse_position(self.last.encode())
        self.recent = msgspec.json.decode(msgspec.json.encode(self.recent), type=RecentCommands)
        self.cursor = CommandCursor(last, self.recent)

    def _read(self) -> None:
        self.cursor.enter(str(self.local), str(self.origin))
        for seq, time, ident in self.mirror:
            if seq < self.cursor.next:
                continue
            if (position := self.cursor.take(seq, time, ident, "ping")) is not None:
                self.run.append(ident)
                self.last = position
                self.recent.add((seq, time, ident))


def test_what_a_mirror_of_two_histories_had_dropped_is_run_and_nothing_else() -> None:
    recent = RecentCommands()
    cursor = CommandCursor(None, recent)
    cursor.enter("first", "o")
    for command in ((1, 10, "a"), (2, 20, "b"), (3, 30, "c"), (5, 50, "y")):  # 5 is of the restored hub
        assert cursor.take(*command, "set") is not None
        recent.add(command)
    cursor.enter("second", "o")
    mirror = [(1, 10, "a"), (2, 35, "v"), (3, 40, "w"), (4, 45, "x"), (5, 50, "y"), (6, 60, "z")]
    assert [command[2] for command in mirror if cursor.take(*command, "set") is not None] == [
        "v",
        "w",
        "x",
        "z",
    ]


def test_without_the_recent_commands_what_is_older_than_the_last_one_run_is_left_out() -> None:
    for created in ("first", "second"):
        cursor = cursor_after(LAST, created, origin="o", remembered=False)
        assert cursor.take(6, 45, "v", "set") is None
        assert cursor.take(7, 60, "z", "set") is not None


def test_a_malformed_command_is_not_taken_for_another_malformed_one() -> None:
    recent = RecentCommands()
    recent.add((5, 50, ""))
    cursor = CommandCursor(CommandPosition("first", "o", 5, 50, "", "set"), recent)
    cursor.enter("second", "p")
    assert cursor.take(5, 60, "", "set") is not None


def test_which_of_two_histories_came_later_is_decided_by_the_order_of_running() -> None:
    recent = RecentCommands()
    for command in ((15, 150, "old"), (6, 100, "new")):
        recent.add(command)
    answered, begun = (
        CommandPosition("a", "o", 15, 150, "old", "set"),
        CommandPosition("b", "o", 6, 150, "new", "set"),
    )
    assert unanswered(begun, answered, recent)
    assert not unanswered(answered, begun, recent)


@pytest.mark.parametrize(
    ("begun", "answered", "expected"),
    [
        (None, None, False),
        (None, LAST, False),
        (LAST, None, True),
        (LAST, LAST, False),
        (CommandPosition("first", "o", 6, 50, "f", "set"), LAST, True),
        (CommandPosition("first", "o", 4, 50, "d", "set"), LAST, False),
        (CommandPosition("second", "o", 1, 60, "g", "set"), LAST, True),
        (CommandPosition("zeroth", "o", 9, 40, "a", "set"), LAST, False),
    ],
)
def test_a_command_is_unanswered_when_it_comes_after_the_last_answer(
    begun: CommandPosition | None, answered: CommandPosition | None, expected: bool
) -> None:
    assert unanswered(begun, answered, RecentCommands()) is expected


@given(st.builds(CommandPosition, st.text(), st.text(), st.integers(), st.integers(), st.text(), st.text()))
def test_a_position_travels_as_printable_ascii(position: CommandPosition) -> None:
    text = position.encode()
    assert text.isascii()
    assert text.isprintable()
    assert parse_position(text) == position


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"created":"","origin":"","seq":"1","time":1,"id":"","verb":""}', "1"]
)
def test_a_position_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ContractError, match="position of a command"):
        parse_position(text)


@pytest.mark.parametrize(
    ("expires", "wall", "synchronised", "expected"),
    [
        (None, 0.0, False, ExpiryVerdict.RUN),
        (STORED + 3600, STORED + 10, True, ExpiryVerdict.RUN),
        (STORED + 3600, STORED + 10, False, ExpiryVerdict.RUN),
        (STORED + 3600, STORED + 3600, True, ExpiryVerdict.EXPIRED),
        (STORED + 3600, STORED + 9999, False, ExpiryVerdict.EXPIRED),
        # A clock that was never set.
        (STORED + 3600, 0.0, False, ExpiryVerdict.UNSURE),
        (STORED + 3600, STORED - 59, False, ExpiryVerdict.RUN),
        (STORED + 3600, STORED - 61, False, ExpiryVerdict.UNSURE),
        # The hub's clock is the wrong one.
        (STORED + 3600, STORED - 7200, True, ExpiryVerdict.RUN),
        # Whatever this clock says, it was over before the hub stored it.
        (STORED - 1, 0.0, False, ExpiryVerdict.EXPIRED),
    ],
)
def test_a_command_is_judged_by_a_clock_that_may_be_wrong(
    expires: float | None, wall: float, synchronised: bool, expected: ExpiryVerdict
) -> None:
    assert judge_expiry(expires, STORED, Instant(int(wall * SECOND), Clock(synchronised, "b", 0))) is expected
