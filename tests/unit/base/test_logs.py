from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator

import pytest
import structlog

from agent.base import logs


@pytest.fixture(autouse=True)
def _defaults() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def test_the_level_is_changed_for_loggers_that_are_made_already(
    capsys: pytest.CaptureFixture[str],
) -> None:
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
