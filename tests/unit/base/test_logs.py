from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator

import pytest
import structlog
from structlog.testing import capture_logs

from agent.base import logs
from agent.base.logs import LogEdge, Sparse, listed, time_text


@pytest.fixture(autouse=True)
def _defaults() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def test_the_level_is_changed_for_loggers_that_are_made_already(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up("info", "json")
    log = structlog.get_logger("x").bind(part="one")
    for level, message in (("info", "first"), ("debug", "second"), ("error", "third"), ("info", "fourth")):
        logs.set_level(level)
        log.debug(f"{message} debug")
        log.info(f"{message} info")
        log.exception(f"{message} error")
    told = [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()]
    assert told == [
        "first info",
        "first error",
        "second debug",
        "second info",
        "second error",
        "third error",
        "fourth info",
        "fourth error",
    ]


def test_a_logger_that_was_made_while_standard_error_was_another_goes_on_when_that_is_closed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = structlog.get_logger("kept")
    with monkeypatch.context() as within, io.StringIO() as other:
        within.setattr(sys, "stderr", other)
        logs.set_up("info", "json")
        log.info("first")
        assert "first" in other.getvalue()
    log.info("second")
    assert "second" in capsys.readouterr().err


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


def test_a_report_is_logged_with_its_facts_and_those_after_the_first_few_are_not() -> None:
    sparse = Sparse()
    with capture_logs() as logs:
        for _ in range(7):
            sparse.report(structlog.get_logger("test").warning, "line skipped", at="a.log:3")
    assert (
        logs
        == [{"event": "line skipped", "log_level": "warning", "at": "a.log:3", "not_reported_before": 0}] * 5
    )


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


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 seconds"), (119, "119 seconds"), (120, "2 minutes"), (7200, "2 hours"), (200_000, "2 days")],
)
def test_a_time_is_told_in_its_largest_unit(seconds: float, text: str) -> None:
    assert time_text(seconds) == text
    assert time_text(59.4, " s") == "59 s"
