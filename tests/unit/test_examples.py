"""`make test` plays a share of what costs most; other targets play all of it."""

from __future__ import annotations

import pytest

from tests.harness.examples import costly, machine


def test_a_quarter_is_played_but_ten_at_least_or_all_of_fewer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("EXAMPLES", raising=False)
    assert [costly(count).max_examples for count in (400, 100, 30, 5)] == [100, 25, 10, 5]
    assert machine(60, 40).max_examples == 15


def test_all_fixed_examples_are_played_where_all_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXAMPLES", "all")
    assert costly(400).max_examples == 400
    assert (machine(60, 40).max_examples, machine(60, 40).derandomize) == (60, True)


def test_a_machine_plays_so_many_new_examples_as_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EXAMPLES", "5000")
    assert (machine(60, 40).max_examples, machine(60, 40).derandomize) == (5000, False)
    assert costly(400).max_examples == 400
