"""Which sources do not flow though their leaf is linked, and which of them are to be added again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.hub.registrar.stalled_sources import StalledSources, Suspect, judge, next_look, trouble
from agent.jetstream.info import CopyStatus


@pytest.mark.parametrize(
    ("active", "suspect", "now", "expected"),
    [
        (None, Suspect(since=10), 10, "again"),
        (None, Suspect(since=10, not_before=11.5), 11, "wait"),
        (None, Suspect(since=10, not_before=11.5), 12, "again"),
        (30.0, Suspect(since=10), 10.1, "wait"),
        (30.0, Suspect(since=10), 10.3, "again"),
        (0.5, Suspect(since=10), 10.2, "wait"),
        (0.1, Suspect(since=10), 10.2, "well"),
        (None, Suspect(since=10, tries=1, tried_at=10), 12.9, "wait"),
        (None, Suspect(since=10, tries=1, tried_at=10), 13.0, "again"),
        (None, Suspect(since=10, tries=6, tried_at=10), 105.9, "wait"),
        (None, Suspect(since=10, tries=6, tried_at=10), 106.0, "again"),
        (0.1, Suspect(since=10, tries=6, tried_at=10), 11.0, "well"),
    ],
)
def test_a_source_is_added_again_when_its_leaf_is_linked_and_it_stays_silent(
    active: float | None, suspect: Suspect, now: float, expected: str
) -> None:
    assert judge(suspect, CopyStatus(0, active), now) == expected


def test_sources_return_until_each_was_heard_or_added_again_once() -> None:
    sources = StalledSources()
    silent, heard = {"A": CopyStatus(0, None)}, {"A": CopyStatus(0, 0.1)}
    assert not sources.return_in(silent)
    sources.linked("A", 10.0)
    assert sources.return_in(silent)
    assert not sources.return_in(heard)
    assert not sources.return_in({})
    sources.tried(["A"], 10.0)
    assert not sources.return_in(silent)
    sources.linked("A", 20.0)
    sources.unlinked("A")
    assert not sources.return_in(silent)


def test_a_source_that_is_not_there_is_not_added_again() -> None:
    assert judge(Suspect(since=10), None, 99) == "wait"


@given(tries=st.integers(1, 10_000), now=st.floats(0, 1e6))
def test_a_source_that_does_not_come_is_tried_ever_more_rarely_but_always_again(
    tries: int, now: float
) -> None:
    suspect = Suspect(since=now, tries=tries, tried_at=now)
    assert judge(suspect, CopyStatus(0, None), now + 300) == "again"
    assert now < next_look(suspect, now) <= now + 300


def test_a_linked_source_that_falls_silent_is_suspect_and_one_that_is_not_linked_is_let_alone() -> None:
    suspects = StalledSources()
    suspects.linked("A", since=0)
    suspects.linked("B", since=0)
    heard = {name: CopyStatus(1, 0.1) for name in ("A", "B", "C")}
    assert suspects.look(heard, 1.0).well == {"A", "B"}
    suspects.unlinked("B")
    silent = {name: CopyStatus(1, 5.0) for name in ("A", "B", "C")}
    assert suspects.look(silent, 10.0).again == set(), "its heartbeats may queue behind data"
    still = {name: CopyStatus(1, 11.0) for name in ("A", "B", "C")}
    assert suspects.look(still, 16.0).again == {"A"}


def test_a_source_that_is_added_again_in_vain_is_told_of_once_and_again_when_it_flows() -> None:
    suspects, now, told = StalledSources(), 0.0, 0
    suspects.linked("A", since=0)
    for _ in range(40):
        now += 1.0
        verdicts = suspects.look({"A": CopyStatus(0, None)}, now)
        suspects.tried(verdicts.again, now)
        told += len(verdicts.hopeless)
    assert told == 1
    assert "permission" in suspects.hopeless()["A"]
    assert suspects.look({"A": CopyStatus(1, 0.1)}, now + 1).saved == {"A"}
    assert suspects.hopeless() == {}


def test_a_source_that_became_another_one_is_tried_anew() -> None:
    suspects = StalledSources()
    suspects.linked("A", since=0)
    for now in range(1, 20):
        suspects.tried(suspects.look({"A": CopyStatus(0, None)}, now).again, now)
    assert suspects.hopeless()
    suspects.changed("A", 20)
    assert suspects.hopeless() == {}
    assert suspects.look({"A": CopyStatus(0, None)}, 21).again == set()
    assert suspects.look({"A": CopyStatus(0, None)}, 22).again == {"A"}


def test_the_error_of_a_source_is_told_with_its_remedy() -> None:
    assert trouble(CopyStatus(1, 0.1)) is None
    assert "$JS.FC" in (trouble(CopyStatus(1, 0.1, "not acknowledged", 10228)) or "")
    assert "not found" in (trouble(CopyStatus(1, 0.1, "stream not found", 10059)) or "")
