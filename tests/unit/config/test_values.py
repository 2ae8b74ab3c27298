"""Durations and addresses, and windows of a day in which a metered link may be open."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.config.values import Seconds, Window, Windows, listen_address

NIGHT = Windows(["22:00-06:00"])
DAY = datetime(2026, 11, 21)


def at(text: str) -> datetime:
    return datetime.combine(DAY, datetime.strptime(text, "%H:%M").time())


def test_a_link_without_windows_is_always_open() -> None:
    assert Windows([]).open(DAY)
    assert Windows([]).closed(DAY) == ""


@pytest.mark.parametrize(
    ("time", "open_"),
    [("21:59", False), ("22:00", True), ("00:00", True), ("05:59", True), ("06:00", False), ("12:00", False)],
)
def test_a_window_may_go_over_midnight(time: str, open_: bool) -> None:
    assert NIGHT.open(at(time)) is open_


def test_a_closed_link_says_when_it_opens_next() -> None:
    assert NIGHT.closed(at("12:00")) == "the link is closed until 22:00 by its windows"
    several = Windows(["04:00-05:00", "12:30-13:00"])
    assert "until 12:30" in several.closed(at("06:00"))
    assert "until 04:00" in several.closed(at("13:00"))
    assert "until 04:00" in several.closed(at("23:59"))
    assert several.closed(at("12:45")) == ""


@pytest.mark.parametrize("text", ["22:00", "24:00-01:00", "22:00-22:00", "2:00-3:00", "22:00-06:60", ""])
def test_what_is_no_window_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a window|has no length"):
        Window.parse(text)


@given(st.lists(st.tuples(st.times(), st.times()), min_size=1, max_size=4), st.times())
def test_a_closed_link_is_open_at_the_time_it_says(pairs: list[tuple[object, object]], now: object) -> None:
    texts = [f"{a:%H:%M}-{b:%H:%M}" for a, b in pairs if f"{a:%H:%M}" != f"{b:%H:%M}"]
    windows = Windows(texts)
    moment = at(f"{now:%H:%M}")
    said = windows.closed(moment)
    assert bool(said) is not windows.open(moment)
    if said:
        opens = at(said.split()[5])
        assert windows.open(opens)
        assert not windows.open(opens - timedelta(minutes=1)) or opens == moment


@given(st.text(max_size=12))
def test_a_duration_is_above_nothing_or_refused(text: str) -> None:
    try:
        assert Seconds.parse(text) > 0
    except ValueError:
        return


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:80", ("127.0.0.1", 80)), ("[::1]:0", ("::1", 0)), ("localhost:65535", ("localhost", 65535))],
)
def test_an_address_is_read(text: str, address: tuple[str, int]) -> None:
    assert listen_address(text) == address


@pytest.mark.parametrize("text", ["", "8080", ":8080", "h:", "h:x", "h:65536", "h:-1", "h:٣"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not host:port"):
        listen_address(text)
