"""How many dead letters are kept."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.contract import MAX_BATCH_BYTES, Letter, parse_letter
from agent.leaf.publish.dead_letters import BURST_BYTES, RATE_BYTES, LetterLimit
from tests.harness.examples import costly


def letters(count: int, size: int = 200) -> list[Letter]:
    """Letters that are told apart by where they stood."""
    return [Letter(b"x" * size, f"f:{number}", "no") for number in range(count)]


def flood(limit: LetterLimit, input_name: str) -> tuple[int, int]:
    """Fill the limit at time 0: how many letters were passed over, and the bytes of those that were not."""
    omitted = size = 0
    while not omitted:
        kept = limit.keep(input_name, letters(100), 0.0)
        limit.pass_over(input_name, kept)
        omitted, size = kept.omitted, size + len(kept.payload)
    return omitted, size


def test_a_message_holds_no_more_than_a_batch() -> None:
    kept = LetterLimit().keep("file", letters(10_000), 0.0)
    assert MAX_BATCH_BYTES * 0.99 < len(kept.payload) <= MAX_BATCH_BYTES
    assert kept.omitted == 0


def test_letters_are_kept_as_they_came() -> None:
    kept = LetterLimit().keep("file", letters(3), 0.0)
    assert [parse_letter(line).at for line in kept.payload.splitlines()] == ["f:0", "f:1", "f:2"]
    assert (kept.count, kept.omitted, kept.reported) == (3, 0, 0)
    assert kept.payload.endswith(b"\n")


def test_what_is_beyond_the_limit_is_counted_and_the_next_letter_that_is_kept_says_so() -> None:
    limit = LetterLimit()
    omitted, size = flood(limit, "file")
    assert BURST_BYTES * 0.95 < size < BURST_BYTES
    second = limit.keep("file", letters(2), 10.0)
    assert [parse_letter(line).omitted for line in second.payload.splitlines()] == [omitted, 0]
    assert parse_letter(limit.keep("file", letters(1), 20.0).payload).omitted == 0, "it is told once"


def test_an_input_is_told_of_its_own_letters_and_shares_the_room_of_its_class() -> None:
    limit = LetterLimit()
    flood(limit, "udp")
    assert limit.keep("file", letters(1), 9.0).reported == 0
    assert limit.keep("udp", letters(1), 18.0).reported > 0


def test_what_was_refused_may_be_kept_the_next_time() -> None:
    limit = LetterLimit()
    flood(limit, "file")
    for _ in range(100):
        again = limit.keep("file", letters(3), 5.0)
        assert (again.count, again.reported > 0) == (3, True)
        limit.give_back("file", again)


@costly()
@given(st.lists(st.tuples(st.integers(0, 300), st.floats(0, 100), st.booleans()), max_size=20))
def test_no_letter_is_lost_from_the_count_and_the_limit_holds(turns: list[tuple[int, float, bool]]) -> None:
    limit, now, size, told, omitted = LetterLimit(), 0.0, 0, 0, 0
    for count, pause, refused in turns:
        now += pause
        kept = limit.keep("file", letters(count, 8000), now)
        assert kept.count + kept.omitted <= count
        if refused:
            limit.give_back("file", kept)
            continue
        limit.pass_over("file", kept)
        size += len(kept.payload)
        omitted += kept.omitted
        told += sum(parse_letter(line).omitted for line in kept.payload.splitlines())
    assert size <= BURST_BYTES + now * RATE_BYTES
    last = limit.keep("file", letters(1), now + 100_000.0)
    assert told + parse_letter(last.payload).omitted == omitted
