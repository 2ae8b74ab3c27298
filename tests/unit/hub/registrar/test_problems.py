"""Which problems are kept and told."""

from __future__ import annotations

import pytest
import structlog

from agent.hub.registrar import problems as problems_module
from agent.hub.registrar.problems import ActiveProblems


def test_what_is_wrong_with_the_hub_is_kept_however_many_leaves_are_in_trouble() -> None:
    with structlog.testing.capture_logs():
        problems = ActiveProblems()
        for number in range(10_001):
            problems.begin(f"leaf {number}", "broken")
        assert problems.of("leaf 10000") is None, "of leaves, so many are kept"
        problems.begin("leaf 0", "broken otherwise")
        assert problems.of("leaf 0") == "broken otherwise"
        problems.begin("server", "too old", hub=True)
        assert problems.of("server") == "too old"


def test_a_problem_is_told_once_when_it_begins_and_once_when_it_ends() -> None:
    with structlog.testing.capture_logs() as logs:
        problems = ActiveProblems()
        problems.end("x", "was never there")
        problems.begin("x", "broken")
        problems.begin("x", "broken")
        problems.begin("x", "broken otherwise")
        problems.end("x", "well")
        problems.end("x", "well")
    assert [one["event"] for one in logs] == ["broken", "well"]


def test_a_problem_that_changes_is_told_again_once_a_minute_and_its_newest_sentence_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(problems_module, "loop_time", lambda: now)
    with structlog.testing.capture_logs() as logs:
        problems = ActiveProblems()
        for now in range(150):
            problems.begin("x", f"broken {now}")
            assert problems.of("x") == f"broken {now}"
    assert [one["event"] for one in logs] == ["broken 0", "broken 60", "broken 120"]
