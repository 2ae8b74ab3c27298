"""Bounded lists of names."""

from __future__ import annotations

import pytest

from agent.base.text import listed


@pytest.mark.parametrize(
    ("items", "most", "text"),
    [
        ([], 2, ""),
        (["a"], 2, "a"),
        (["a", "b"], 2, "a, b"),
        (["a", "b", "c"], 2, "a, b and 1 more"),
        (["a", "b", "c", "d"], 1, "a and 3 more"),
    ],
)
def test_a_list_names_the_first_and_counts_the_rest(items: list[str], most: int, text: str) -> None:
    assert listed(items, most) == text


def test_a_list_may_have_another_separator_and_a_noun() -> None:
    assert listed(["a", "b", "c"], 2, by="; ", noun="ranges") == "a; b and 1 more ranges"
