"""The page of the faults says what the report does."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from tests.faults.front import KINDS, front, kind_of, picture
from tests.faults.mixed.covering import scenario
from tests.faults.mixed.page import part_of, rounds_part, with_part
from tests.faults.page import FRONT, PAGE, PICTURE, by_theme, cases_of, main, merged, page
from tests.faults.report import Case


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


def test_the_picture_has_a_mark_for_each_case_with_a_time_and_counts_the_others() -> None:
    cases = [
        Case("a", theme="Links: cut.", passed=True, recover_seconds=1.0),
        Case("b", theme="Links: cut.", lost=3, recover_seconds=1000.0),
        Case("c", theme="Stores.", passed=True, duplicates=0),
    ]
    drawn = picture(by_theme([asdict(one) for one in cases]))
    assert "3 cases: 3 readings lost, 0 doubled; 1 did not pass" in drawn
    assert drawn.count('<circle class="ours"') == drawn.count('<circle class="under"') == 1
    assert [drawn.count(f">{told}<") for told in ("Links", "Stores", "2", "1")] == [1, 1, 1, 1]


def test_rounds_are_a_part_of_the_page_that_takes_the_place_of_the_one_before() -> None:
    rounds = [
        Case("round 2", scenario=str(scenario(2)), seed=2, passed=True, sent=10, acknowledged=9, lost=0),
        Case("round 1", scenario=str(scenario(1)), seed=1, lost=3, seen=["once: readings 1 of a are there"]),
    ]
    told = page([asdict(Case("a", theme="Links."))])
    both = with_part(told, rounds_part([asdict(one) for one in rounds]))
    assert "2 rounds: 1 passed, 1 failed; 3 readings lost" in both
    assert both.index("| 1 | ") < both.index("| 2 | ") < both.index("## What was expected, and seen")
    assert "Seed 1:\n\n* once: readings 1 of a are there\n" in both
    less = with_part(both, rounds_part([asdict(rounds[0])]))
    assert "| 1 | " not in less
    assert with_part(told, part_of(less)) == less
    assert part_of(told) == ""


def test_the_page_keeps_the_cases_that_a_report_of_one_lacks() -> None:
    first = Case("a", "expected", True, 1234, 1200, 0, 0, 0.5, 3.0, 2, ["0.0 s: killed"], theme="Links.")
    second = Case("b", theme="Stores.", sent_again=5, not_proven=["no root"], seed=7)
    before = page([asdict(case) for case in (first, second)])
    again = Case("a", "expected", False, 10, 9, 1, theme="Links.")

    after = page(merged(cases_of(before), [asdict(again)]))

    assert after == page([asdict(again), asdict(second)])


def test_the_cases_of_the_page_in_the_documents_make_that_page() -> None:
    text = PAGE.read_text()
    assert with_part(page(cases_of(text)), part_of(text)) == text
    assert FRONT.read_text() == front(by_theme(cases_of(text)), part_of(text)), "make faults-page"


def test_without_a_report_the_pages_are_made_of_what_they_keep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = {path: path.read_text() for path in (PAGE, FRONT, PICTURE)}
    for path, text in kept.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / FRONT).write_text("old")
    monkeypatch.chdir(tmp_path)

    main()

    assert {path: path.read_text() for path in kept} == kept
    assert "run `make faults` first" in capsys.readouterr().out


def test_the_lines_in_front_sum_up_a_kind_of_faults_and_name_what_did_not_pass() -> None:
    cases = [
        Case(
            "a", passed=True, acknowledged=1000, lost=0, named=7, recover_seconds=2.4, theme="The power of x"
        ),
        Case("b", acknowledged=500, lost=3, duplicates=1, recover_seconds=9.6, theme="The power of y: z"),
        Case("c", passed=True, acknowledged=20, theme="Something new"),
    ]
    told = front(by_theme([asdict(one) for one in cases]), "before\n\n2 rounds: 2 passed; so\n\nafter\n")
    power, new = [line for line in told.splitlines() if line.startswith("* ")]
    assert power.endswith(
        "hub**: 1 of 2 cases passed; 1,500 readings acknowledged, 3 lost, 7 named (*a*), 1 doubled; "
        "all at the hub again within 10 s."
    )
    assert new.endswith(
        "upgrades**: 1 of 1 cases passed; 20 readings acknowledged, 0 lost, 0 named, 0 doubled."
    )
    assert "drawn at random: 2 rounds: 2 passed; so\n" in told
    assert "Together: 2 of 3 cases passed; 1,520 readings" in told
    assert "Not passed, or not run: b.\n" in told


def test_each_kind_of_faults_has_cases_of_its_own() -> None:
    themes = by_theme(cases_of(PAGE.read_text()))
    assert {kind_of(theme) for theme in themes} == set(KINDS)
