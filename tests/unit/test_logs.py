from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import structlog

from agent import logs
from agent.config import Log


@pytest.fixture(autouse=True)
def _defaults() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def test_the_level_is_changed_for_loggers_that_are_made_already(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.set_up(Log(level="info", format="json"))
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
