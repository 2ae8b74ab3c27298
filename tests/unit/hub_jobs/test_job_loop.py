from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from agent.contract import Exit
from hub_jobs.job_loop import NextJob, Stop, gravest, job_parser, run_job
from hub_jobs.metrics import JobMetrics
from hub_jobs.tables.delta import ConflictError


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Put the process's signal handlers back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def every(*arguments: str) -> float | None:
    parser = job_parser("job", "", repeats=True)
    found: float | None = parser.parse_args(["--lake", "lake", *arguments]).every
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

    def job(stop: Stop) -> Exit:
        nonlocal runs
        runs += 1
        if runs == 2:
            raise ConflictError("another writer was first")
        if runs == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return found[0] if runs == 1 else found[1]

    assert run_job(job, 0.001, JobMetrics("job")) is exit_code
    assert runs == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("found", [Exit.WELL, Exit.LOSS])
def test_a_single_run_sees_a_signal_and_a_second_one_is_no_longer_held_back(
    number: signal.Signals, found: Exit, capsys: pytest.CaptureFixture[str]
) -> None:
    def first(*_: object) -> None:
        others.append("handled")

    others: list[str] = []
    signal.signal(number, first)

    def job(stop: Stop) -> Exit:
        assert not stop()
        os.kill(os.getpid(), number)
        assert stop()
        assert others == []
        os.kill(os.getpid(), number)
        return found

    assert run_job(job, None, JobMetrics("job")) is found
    assert others == ["handled"]
    assert capsys.readouterr().err == "job: stopped\n"
    assert signal.getsignal(number) is first


def test_signals_are_as_before_after_a_run_that_nothing_stopped() -> None:
    before = signal.getsignal(signal.SIGTERM)

    assert run_job(lambda stop: Exit.WELL, None, JobMetrics("job")) is Exit.WELL

    assert signal.getsignal(signal.SIGTERM) is before


def test_of_several_runs_a_loss_is_told_before_what_the_next_run_meets_again() -> None:
    assert gravest([]) is Exit.WELL
    assert gravest([Exit.WELL, Exit.CONFLICT, Exit.UNREACHABLE]) is Exit.UNREACHABLE
    assert gravest([Exit.FAILED, Exit.UNREACHABLE]) is Exit.FAILED
    assert gravest([Exit.LOSS, Exit.FAILED, Exit.UNREACHABLE]) is Exit.LOSS


def test_wrong_usage_is_not_tried_again() -> None:
    assert run_job(lambda stop: Exit.USAGE, 0.001, JobMetrics("job")) is Exit.USAGE


def test_a_job_after_another_runs_whatever_became_of_that_one_and_not_after_a_signal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ran: list[str] = []

    def first(stop: Stop) -> Exit:
        ran.append("first")
        if len(ran) > 2:
            os.kill(os.getpid(), signal.SIGTERM)
        raise OSError("no room left")

    def second(stop: Stop) -> Exit:
        ran.append("second")
        return Exit.LOSS

    def run(every: float | None) -> Exit:
        return run_job(first, every, JobMetrics("one"), [NextJob(second, JobMetrics("two"))])

    assert run(None) is Exit.LOSS, "the gravest of both"
    assert run(0.001) is Exit.WELL
    assert ran == ["first", "second", "first"]
    assert capsys.readouterr().err.splitlines() == ["one: no room left", "one: no room left", "one: stopped"]
