"""The pages of the faults say what the report does."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from tests.faults import page as pages
from tests.faults.front import KINDS, kind_of, table
from tests.faults.mixed.covering import scenario
from tests.faults.page import PROOF, by_theme, dumped, kept, merged, page
from tests.faults.report import Case
from tests.harness.marked import marked


def test_a_case_is_a_row_and_what_was_seen_of_it() -> None:
    case = Case(
        "the agent is killed", "nothing is lost", True, 1234, 1200, 0, 0, 0.52, 3.0, 2, ["0.0 s: killed"]
    )
    told = page([asdict(case) | {"commit": "abc1234"}])
    row = "| the agent is killed | passed | 1,234 | 1,200 | 0 | 2 | 0 | 0.5 s | 3.0 s | – | abc1234 |"
    assert row in told
    assert "1 cases: 1 passed, 0 not run, 0 failed" in told
    assert "### the agent is killed\n\nExpected: nothing is lost.\n\n* 0.0 s: killed\n" in told


def test_what_was_sent_again_is_a_column_of_the_theme_in_which_it_was_counted() -> None:
    cases = [
        Case("a", theme="Stores.", sent_again=1234),
        Case("b", theme="Stores."),
        Case("c", theme="Links."),
    ]
    told = page([asdict(one) for one in cases])
    assert told.count("| sent again |") == 1
    assert [line for line in told.splitlines() if line.startswith(("| a |", "| b |", "| c |"))] == [
        f"| {name} | **failed** |{' – |' * 9}{more}"
        for name, more in (("a", " 1,234 |"), ("b", " – |"), ("c", ""))
    ]


def test_a_case_that_was_not_run_or_failed_is_not_called_passed() -> None:
    skipped = Case("a", not_proven=["not run: no root"])
    told = page([asdict(skipped), asdict(Case("b"))])
    assert "| a | not run |" in told
    assert "| b | **failed** |" in told
    assert "* *Not proven*: not run: no root\n" in told


def test_where_the_scratch_directory_of_a_case_was_is_left_out() -> None:
    rooms = ("/tmp/pytest-of-me/pytest-12/test_the_disk_of_a_leaf_is_ful0", "/scratch/test_a_2")
    seen = [f"1.5 s: the disk is full: free some room on {room}/disk/store" for room in rooms]
    kept = "0.1 s: 3 kB/s at /etc/petiole/test, and a/b"
    told = page([asdict(Case("a", seen=[*seen, kept]))])
    said = "* 1.5 s: the disk is full: free some room on …/disk/store\n"
    assert f"{said}{said}* {kept}\n" in told


def test_cases_of_a_theme_stand_together() -> None:
    cases = [Case("a", theme="Links."), Case("b", theme="Stores."), Case("c", theme="Links.")]
    told = page([asdict(one) for one in cases])
    assert told.index("## Links\n") < told.index("| a |") < told.index("| c |") < told.index("## Stores\n")


def test_rounds_are_a_part_of_the_page_in_the_order_of_their_seeds() -> None:
    rounds = [
        Case("round 2", scenario=str(scenario(2)), seed=2, passed=True, sent=10, acknowledged=9, lost=0),
        Case("round 1", scenario=str(scenario(1)), seed=1, lost=3, seen=["once: readings 1 of a are there"]),
    ]
    told = page([asdict(Case("a", theme="Links."))], [asdict(one) for one in rounds])
    assert "2 rounds: 1 passed, 1 failed; 3 readings lost" in told
    assert told.index("| 1 | ") < told.index("| 2 | ") < told.index("## What was expected, and seen")
    assert "Seed 1:\n\n* once: readings 1 of a are there\n" in told
    assert "Faults that meet" not in page([asdict(Case("a", theme="Links."))])


def test_the_kept_cases_that_a_report_lacks_stay_in_their_place() -> None:
    first, second, again = Case("a", lost=1), Case("b"), Case("a", passed=True)
    found = merged([asdict(first), asdict(second)], [asdict(again)])
    assert [(row["case"], row["passed"]) for row in found] == [("a", True), ("b", False)]


def test_the_table_in_the_documents_is_what_the_kept_results_give() -> None:
    cases, rounds = kept()
    assert marked(PROOF.read_text(), "faults") == table(by_theme(cases), rounds), "make faults KEEP=1"


def test_without_a_report_the_kept_results_and_the_table_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results, proof = tmp_path / "results.json", tmp_path / "proof.md"
    results.write_text(dumped(*kept()))
    proof.write_text("before\n<!-- faults -->\nold\n<!-- /faults -->\nafter\n")
    monkeypatch.setattr(pages, "RESULTS", results)
    monkeypatch.setattr(pages, "PROOF", proof)
    monkeypatch.chdir(tmp_path)

    pages.main()

    assert results.read_text() == dumped(*kept())
    assert marked(proof.read_text(), "faults") == marked(PROOF.read_text(), "faults")
    assert proof.read_text().endswith("<!-- /faults -->\nafter\n")
    assert "run `make faults` first" in capsys.readouterr().out


def test_a_line_of_the_table_sums_up_a_kind_of_faults() -> None:
    cases = [
        Case(
            "a", passed=True, acknowledged=1000, lost=0, named=7, recover_seconds=2.4, theme="The power of x"
        ),
        Case("b", acknowledged=500, lost=3, duplicates=1, recover_seconds=9.6, theme="The power of y: z"),
        Case("c", passed=True, acknowledged=20, theme="Something new"),
    ]
    told = table(by_theme([asdict(one) for one in cases]), [])
    power, new, together = told.splitlines()[2:5]
    assert power.endswith("hub | 1 of 2 | 1,500 | 3 | 7 | 1 | 10 s |")
    assert new.endswith("programs | 1 of 1 | 20 | 0 | 0 | 0 | – |")
    assert together == "| **Together** | 2 of 3 | 1,520 | 3 | 7 | 1 | 10 s |"
    assert "Not passed, or not run: b.\n" in told


def test_each_kind_of_faults_has_cases_of_its_own() -> None:
    themes = by_theme(kept()[0])
    assert {kind_of(theme) for theme in themes} == set(KINDS)
