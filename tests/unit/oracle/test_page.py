"""The page of the faults says what the report does."""

from __future__ import annotations

from dataclasses import asdict

from tests.faults.page import page
from tests.faults.report import Case


def test_a_case_is_a_row_and_what_was_seen_of_it() -> None:
    case = Case(
        "the agent is killed", "nothing is lost", True, 1234, 1200, 0, 0, 0.52, 3.0, 2, ["0.0 s: killed"]
    )
    told = page([asdict(case) | {"commit": "abc1234"}])
    row = "| the agent is killed | passed | 1,234 | 1,200 | 0 | 2 | 0 | 0.5 s | 3.0 s | – | abc1234 |"
    assert row in told
    assert "1 cases: 1 passed, 0 not run, 0 failed" in told
    assert "### the agent is killed\n\nExpected: nothing is lost.\n\n* 0.0 s: killed\n" in told


def test_a_case_that_was_not_run_or_failed_is_not_called_passed() -> None:
    skipped = Case("a", not_proven=["not run: no root"])
    told = page([asdict(skipped), asdict(Case("b"))])
    assert "| a | not run |" in told
    assert "| b | **failed** |" in told
    assert "* *Not proven*: not run: no root\n" in told


def test_cases_of_a_theme_stand_together() -> None:
    cases = [Case("a", theme="Links."), Case("b", theme="Stores."), Case("c", theme="Links.")]
    told = page([asdict(one) for one in cases])
    assert told.index("## Links\n") < told.index("| a |") < told.index("| c |") < told.index("## Stores\n")
