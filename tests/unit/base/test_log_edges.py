"""A fault is logged when it begins, changes and ends."""

from __future__ import annotations

import structlog
from structlog.testing import capture_logs

from agent.base.log_edges import LogEdge, Sparse


def test_a_fault_is_logged_once_until_its_facts_change_and_once_when_it_ends() -> None:
    with capture_logs() as logs:
        edge = LogEdge(structlog.get_logger("test"), "works again")
        edge.end()
        for reason in ("a", "a", "b", "b"):
            edge.begin("fails", reason=reason)
        assert edge
        for _ in range(2):
            edge.end()
        assert not edge
        edge.begin("fails", reason="b")
    assert logs == [
        {"event": "fails", "reason": "a", "log_level": "warning"},
        {"event": "fails", "reason": "b", "log_level": "warning"},
        {"event": "works again", "log_level": "info"},
        {"event": "fails", "reason": "b", "log_level": "warning"},
    ]


def test_a_traceback_does_not_make_another_fault_and_an_end_may_be_silent() -> None:
    with capture_logs() as logs:
        edge = LogEdge(structlog.get_logger("test"), error=True)
        for _ in range(2):
            edge.begin("fails", error="x", exc_info=ValueError("x"))
        edge.end()
    assert [(log["event"], log["log_level"]) for log in logs] == [("fails", "error")]


def test_a_few_reports_pass_each_minute_and_the_next_says_how_many_did_not() -> None:
    sparse = Sparse()
    assert [sparse.held_back(0.0) for _ in range(7)] == [0, 0, 0, 0, 0, None, None]
    assert sparse.held_back(60.0) == 2
