"""The sweeps of the jobs: their rows stand beside the right step."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import zstandard

from agent.contract import parse_batch_headers
from bench import NAMES, backlog
from bench import __main__ as bench_main
from bench import lake as lakes
from bench import measured as bench_measured
from bench.hub_stream import Message
from bench.job_process import JobRun, run_command
from bench.kept import Kept, read_all
from bench.measured import Measured
from bench.page import ALL
from bench.report import site_pages
from bench.result import Result, Row
from bench.sweeps import Goals, Runs, Step, further, rows

STEPS = [Step(value, "GB of backlog") for value in (0.1, 1, 10)]


def runs(seconds: float, megabytes: float) -> Runs:
    return {"ingest": [JobRun(seconds, megabytes)]}


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks once at the load of the machine."""
    monkeypatch.setattr(bench_measured, "_LOOKS", 1)


def kept(directory: Path, benchmark: str, found: list[Row]) -> dict[str, Kept]:
    Result(benchmark, found).write(directory, Measured())
    return read_all(directory)


def test_a_step_stands_beside_the_first_or_the_one_before_and_its_goal_counts_there() -> None:
    steps = dict(zip(STEPS, (runs(5, 800), runs(10, 900), runs(60, 1800)), strict=True))
    by_first = [row.as_json() for row in rows(steps, Goals(memory=1.25))]
    memory = [row for row in by_first if row["unit"] == "MB"]
    assert [(row["times"], row["met"]) for row in memory] == [(None, None), (1.125, True), (2.25, False)]
    by_last = [row.as_json() for row in rows(steps, Goals(memory=1.25), each=True)]
    assert [row["times"] for row in by_last if row["unit"] == "MB"] == [None, 1.125, 2.0]


def test_a_further_reading_leaves_out_what_a_process_costs_by_itself() -> None:
    steps = dict(zip(STEPS, (runs(5, 1), runs(14, 1), runs(104, 1)), strict=True))
    sizes = dict(zip(STEPS, (1_000_000, 10_000_000, 100_000_000), strict=True))
    small, large = (row.as_json() for row in further(sizes, steps, 1.15))
    assert (small["value"], large["value"], large["times"], large["met"]) == (1.0, 1.0, 1.0, True)
    assert large["what"] == "from 1 to 10 GB of backlog: ingest, a further reading"


def test_a_sweep_stands_as_a_line_a_step(tmp_path: Path) -> None:
    steps = {Step(10, "leaves"): runs(5, 800), Step(50_000, "leaves"): runs(9, 900)}
    page = site_pages(kept(tmp_path, "spark-scale-leaves", [*rows(steps, Goals())]))[ALL]
    assert "|  | ingest, time (s) | ingest, most memory (MB) |" in page
    assert "| 50,000 leaves | 9 | 900 |" in page


def test_a_step_is_no_alternative_that_another_is_worse_than(tmp_path: Path) -> None:
    steps = {Step(10, "leaves"): runs(5, 800), Step(50_000, "leaves"): runs(9, 900)}
    made = site_pages(kept(tmp_path, "spark-scale-leaves", [*rows(steps, Goals())]))
    worse = made[ALL].partition("### Worse than the alternative")[2].partition("\n## ")[0]
    assert worse
    assert "leaves" not in worse


def test_a_pattern_runs_each_benchmark_that_it_matches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_main, "BUILT", tmp_path)
    told = lambda name: SimpleNamespace(run=lambda: Result(name.removeprefix("bench.").replace("_", "-")))  # noqa: E731
    monkeypatch.setattr("importlib.import_module", told)
    assert bench_main.main(["spark-scale-*"]) == 0
    assert {path.stem for path in tmp_path.iterdir()} == {
        name for name in NAMES if name.startswith("spark-scale-")
    }
    assert bench_main.main(["spark-skale-*"]) == 2
    assert "no benchmark spark-skale-*" in capsys.readouterr().err


def test_the_memory_of_a_job_is_that_of_its_children_too() -> None:
    child = "held = bytearray(90_000_000); import time; time.sleep(1)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    run = run_command("job", [sys.executable, "-c", parent])
    assert run.megabytes > 90
    assert run.seconds > 1


def test_a_job_that_fails_is_told_with_what_it_said_last() -> None:
    failing = "import sys; print('one'); sys.exit('no such table')"
    with pytest.raises(RuntimeError, match="refine ended with 1: no such table"):
        run_command("refine", [sys.executable, "-c", failing])


def test_each_batch_of_a_backlog_has_a_number_of_its_own_and_as_many_readings_as_it_says() -> None:
    shape = lakes.Shape(66_500, 1_000, domains=1, text=backlog._CHARACTERS)
    found: list[Message] = [*backlog._messages(shape)]
    batches, ledger = found[:-1], found[-1]
    assert len({headers["Nats-Msg-Id"] for _, headers, _ in batches}) == len(batches) == 67
    sizes = []
    for _, headers, payload in batches:
        text = zstandard.decompress(payload)
        assert text.count(b"\n") == parse_batch_headers(headers).count
        sizes.append(len(payload))
    assert "ledger" in ledger[0]
    assert sum(sizes) / 66_500 == pytest.approx(backlog._READING_BYTES, rel=0.02)
