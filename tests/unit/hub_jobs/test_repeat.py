from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Iterator

import pytest

from agent.contract import Exit
from hub_jobs.repeat import add_options, repeated
from hub_jobs.tables import ConflictError


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Put the process's signal handlers back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def every(*arguments: str) -> float | None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    found: float | None = parser.parse_args(arguments).every
    return found


def test_a_job_runs_once_unless_it_is_told_how_often() -> None:
    assert every() is None
    assert every("--once") is None
    assert (every("--every", "30s"), every("--every", "5m"), every("--every", "200ms")) == (30, 300, 0.2)
    for text in ("30", "0s", "-1s", "soon"):
        with pytest.raises(SystemExit):
            every("--every", text)


@pytest.mark.parametrize(
    ("found", "exit_code"), [([Exit.WELL, Exit.WELL], Exit.WELL), ([Exit.LOSS, Exit.WELL], Exit.LOSS)]
)
def test_a_run_that_fails_is_tried_again_until_a_signal_and_a_loss_is_remembered(
    found: list[Exit], exit_code: Exit
) -> None:
    runs = 0

    def job() -> Exit:
        nonlocal runs
        runs += 1
        if runs == 2:
            raise ConflictError("another writer was first")
        if runs == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return found[0] if runs == 1 else found[1]

    assert repeated("job", job, 0.001) is exit_code
    assert runs == 3


def test_wrong_usage_is_not_tried_again() -> None:
    assert repeated("job", lambda: Exit.USAGE, 0.001) is Exit.USAGE
