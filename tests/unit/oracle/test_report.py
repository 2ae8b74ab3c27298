"""The report of the faults keeps what every run said."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.faults import report
from tests.faults.report import Case


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(report, "PATH", tmp_path / "faults" / "report.json")
    return report.PATH


def rows(path: Path) -> dict[str, bool]:
    return {row["case"]: row["passed"] for row in json.loads(path.read_text())["cases"]}


def test_a_case_that_is_run_again_replaces_what_was_said_of_it(path: Path) -> None:
    for case in (Case("one"), Case("two"), Case("one", passed=True)):
        report.write(case)
    assert rows(path) == {"one": True, "two": False}


def test_a_case_that_was_not_run_is_told_but_takes_nothing_from_an_earlier_run(path: Path) -> None:
    report.write(Case("one", passed=True))
    for name in ("one", "two"):
        report.write_new(Case(name, not_proven=["not run: no root"]))
    assert rows(path) == {"one": True, "two": False}


def test_runs_beside_each_other_forget_nothing_of_one_another(path: Path) -> None:
    cases = [Case(f"case {number}") for number in range(40)]
    with ThreadPoolExecutor(8) as runs:
        list(runs.map(report.write, cases))
    assert set(rows(path)) == {case.case for case in cases}
