"""Who owns a domain, told from who announces it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.hub.registrar.ownership import DomainOwnership
from agent.hub.registrar.records import FRESH


def test_a_claim_is_told_as_long_as_it_is_made_and_its_end_once() -> None:
    claims = DomainOwnership()
    claims.claimed("a", now=0)
    assert claims.contested("a", FRESH - 1)
    assert claims.settled(FRESH - 1) == []
    assert not claims.contested("a", FRESH)
    assert claims.settled(FRESH) == ["a"]
    assert claims.settled(FRESH) == []


@pytest.mark.parametrize(
    ("runs", "copies"),
    [
        ("AAAA", "----"),
        ("AABB", "----"),
        ("ABAB", "----"),
        ("ABABAB", "-----x"),
        ("ABABABAB", "-----x-x"),
        ("ABABABAC", "-----x-x"),
        ("ABCD", "----"),
    ],
    ids=[
        "one",
        "a restart",
        "a late announcement",
        "two take turns",
        "the first goes on",
        "the copy starts again",
        "starts",
    ],
)
def test_two_runs_that_take_turns_are_two_machines_and_the_newcomer_is_the_copy(
    runs: str, copies: str
) -> None:
    claims = DomainOwnership()
    found = "".join("x" if claims.is_copy("a", run, float(now)) else "-" for now, run in enumerate(runs))
    assert found == copies


def test_the_run_of_the_record_was_there_first() -> None:
    claims = DomainOwnership()
    claims.begin("a", "A", now=0)
    assert [claims.is_copy("a", run, 1.0) for run in "BABABA"] == [False, False, False, False, True, False]


def test_when_the_copy_is_gone_the_domain_is_uncontested_again() -> None:
    claims = DomainOwnership()
    for run in "ABABAB":
        claims.is_copy("a", run, 0.0)
    claims.claimed("a", 0.0)
    assert claims.is_copied("a")
    claims.settled(FRESH)
    assert not claims.is_copied("a")
    assert not claims.is_copy("a", "A", FRESH)


@given(st.lists(st.floats(0, 30), min_size=1, max_size=30))
def test_an_agent_that_is_started_ever_again_is_never_its_own_copy(gaps: list[float]) -> None:
    claims, now = DomainOwnership(), 0.0
    for number, gap in enumerate(gaps):
        now += gap
        assert not claims.is_copy("a", f"run {number}", now)


def test_a_run_goes_on_while_it_alone_announces_its_domain() -> None:
    claims = DomainOwnership()
    assert not claims.goes_on("a", "A", 0)
    assert not claims.is_copy("a", "A", 0)
    assert claims.goes_on("a", "A", 5)
    assert claims.heard_ago("a", 6) == 1
    assert not claims.goes_on("a", "B", 7)
    claims.claimed("a", 8)
    assert not claims.goes_on("a", "A", 9)
    assert claims.heard_ago("a", 9) == 4
