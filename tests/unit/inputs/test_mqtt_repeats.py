"""What a broker sends again is told from what it sends for the first time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.inputs.mqtt.repeats import SECONDS, TRAVELLING, Ident, Repeats, ident_of
from agent.intake import MAX_POSITION

MARK = "0123abcd"
IDENTS = st.lists(
    st.builds(Ident, st.integers(1, 65_535), st.integers(0, 2**32 - 1)),
    unique_by=lambda one: one.packet_id,
    max_size=TRAVELLING,
)


def test_a_message_is_known_by_packet_id_and_content() -> None:
    repeats = Repeats()
    repeats.store(ident_of(7, "a", b"1"), 0.0)
    assert repeats.is_stored(ident_of(7, "a", b"1"))
    for other in (ident_of(8, "a", b"1"), ident_of(7, "b", b"1"), ident_of(7, "a", b"2")):
        assert not repeats.is_stored(other)


@given(IDENTS, IDENTS)
def test_a_position_tells_the_next_run_what_is_stored(known: list[Ident], coming: list[Ident]) -> None:
    repeats, after, between = Repeats(), Repeats(), Repeats()
    for one in known:
        repeats.store(one, 0.0)
    position = repeats.position(MARK, coming, 1.0)
    assert len(position) <= MAX_POSITION
    assert position.isascii()

    assert after.restore(position, 0.0) == coming
    assert all(after.is_stored(one) for one in coming)
    newest = {one.packet_id: one for one in [*known, *coming]}
    if len(known) + len(coming) <= TRAVELLING:
        assert all(after.is_stored(one) for one in newest.values())

    assert between.restore(position, 0.0, begun=True) == coming
    assert not any(between.is_stored(one) for one in coming if one not in known)


def test_what_was_acknowledged_long_ago_travels_no_more_until_a_connection_is_new() -> None:
    repeats = Repeats()
    repeats.store(Ident(7, 1), 0.0)
    assert "7:1" in repeats.position(MARK, [], SECONDS - 1)
    assert "7:1" not in repeats.position(MARK, [], SECONDS + 1)
    repeats.connected(100.0, resumed=True)
    assert "7:1" in repeats.position(MARK, [], 101.0)
    repeats.connected(100.0, resumed=False)
    assert not repeats.is_stored(Ident(7, 1))


def test_a_broker_that_gives_packet_ids_anew_at_once_is_not_trusted_with_them() -> None:
    repeats = Repeats()
    for packet_id in (1, 2):
        repeats.note(Ident(packet_id, 5))
        repeats.store(Ident(packet_id, 5), 0.0)
    assert repeats.is_stored(Ident(1, 5))
    repeats.note(Ident(1, 5))
    assert not repeats.is_stored(Ident(1, 5))
    after = Repeats()
    after.restore(repeats.position(MARK, [], 1.0), 0.0)
    assert not after.is_stored(Ident(2, 5))


@pytest.mark.parametrize("position", ["", "1", "[1, 2]", "1 0123abcd c 7:1", "2 0123abcd c |", "1 x c |"])
def test_a_position_of_another_kind_is_refused(position: str) -> None:
    with pytest.raises(ValueError, match="none of an mqtt input"):
        Repeats().restore(position, 0.0)
