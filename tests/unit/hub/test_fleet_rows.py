"""The fleet as `petiole fleet` shows it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from agent.base.terminal import TerminalLine, table
from agent.hub.fleet_rows import FleetRow, ago, chosen, lines, rows_of, until

NOW = datetime(2026, 11, 21, 12, 0, 30, tzinfo=UTC)


def _leaf(word: str, last: int | None = 10, cursor: int = 10, **given: Any) -> dict[str, Any]:
    held = {"epoch": "e", "stream": "TELEMETRY_0", "cursor": cursor, "last": last}
    at = "2026-11-21T12:00:00+00:00"
    named = {"state": f"it is {word}", "word": word, "linked": True, "announced_at": at}
    return {**named, "classes": {"normal": held}, **given}


FLEET: dict[str, Any] = {
    "state": "well",
    "leaves": {
        "a-1": _leaf("flowing"),
        "a-2": {"state": "never seen", "word": "never", "linked": False},
        "b-1": _leaf("away", last=None),
        "b-2": _leaf("trouble"),
        "b-3": _leaf("stopped", last=30),
        "b-4": _leaf("flowing", last=12),
        "b-5": _leaf("a word that is not known"),
    },
}


def _texts(rows: list[FleetRow], most: int | None = None, width: int | None = None) -> list[str]:
    return [one.text for one in lines(FLEET, rows_of(FLEET, NOW), rows, most, width)]


def test_leaves_in_trouble_come_first_and_then_who_is_furthest_behind() -> None:
    rows = rows_of(FLEET, NOW)

    assert [one.domain for one in rows] == ["b-2", "b-5", "b-3", "b-1", "a-2", "b-4", "a-1"]
    behind = {one.domain: one.behind for one in rows}
    assert behind == {"a-1": 0, "a-2": None, "b-1": None, "b-2": 0, "b-3": 20, "b-4": 2, "b-5": 0}
    assert {one.domain: one.heard for one in rows}["a-1"] == 30.0


@pytest.mark.parametrize(
    ("patterns", "states", "expected"),
    [
        ((), (), 7),
        (("a-*",), (), 2),
        (("a-1", "b-?"), (), 6),
        ((), ("away", "never"), 2),
        (("a-*",), ("never",), 1),
        (("c*",), (), 0),
    ],
)
def test_a_filter_keeps_the_leaves_that_fit(
    patterns: tuple[str, ...], states: tuple[str, ...], expected: int
) -> None:
    assert len(list(chosen(rows_of(FLEET, NOW), patterns, states))) == expected


def test_the_summary_counts_all_leaves_and_the_rows_fit_the_terminal() -> None:
    rows = rows_of(FLEET, NOW)

    found = _texts(rows, most=3, width=24)

    assert found[0] == "hub: well; 1 trouble, 1 stopped, 1 away, 1 never, 2 flowing"
    assert len(found) == 6
    assert found[-1].startswith("and 4 more")
    assert all(len(one) <= 24 for one in found[1:-1]), found
    assert "no leaf fits" in _texts([])[-1]


def test_nothing_is_cut_in_a_pipe() -> None:
    long = {"leaves": {"d": _leaf("trouble", state="x" * 300)}}
    rows = rows_of(long, NOW)

    assert "x" * 300 in [one.text for one in lines(long, rows, rows, None, None)][-1]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(None, "-"), (0.4, "0s"), (119, "119s"), (120, "2m"), (7_200, "2h"), (90_000 * 24, "25d")],
)
def test_how_long_ago_is_said_shortly(seconds: float | None, said: str) -> None:
    assert ago(seconds) == said


def test_a_name_with_escape_codes_is_shown_as_text_and_keeps_its_column() -> None:
    found = table(("A", "B"), [(("\x1b[2Jx", "1"), ""), (("y", "22"), "")], (1,))

    assert found[1:] == [TerminalLine("\\x1b[2Jx   1"), TerminalLine("y         22")]


@pytest.mark.parametrize(("announced", "left"), [(3630.0, 3600.0), (10.0, 0.0), ("inf", float("inf"))])
def test_the_time_to_first_loss_has_gone_on_since_its_leaf_announced_it(announced: Any, left: float) -> None:
    leaf = _leaf("away")
    leaf["classes"]["normal"]["seconds_to_loss"] = announced
    assert rows_of({"leaves": {"a-1": leaf}}, NOW)[0].loss == left


def test_a_loss_in_more_than_ten_years_is_none() -> None:
    assert [until(seconds) for seconds in (float("inf"), 1.3e14, 90_000.0, None)] == [
        "none",
        "none",
        "25h",
        "-",
    ]
