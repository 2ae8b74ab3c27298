"""The table in docs/proof.md is what the kept results give, and the page of all benchmarks says what is not
better."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench import NAMES, module_name
from bench import __main__ as bench_main
from bench import measured as bench_measured
from bench.goals import cause
from bench.kept import figure, read, read_all
from bench.measured import Measured
from bench.page import ALL, described
from bench.report import keep, ordered, site_pages
from bench.result import Against, Failed, Result, Row, UnfinishedError, interleaved, measuring
from bench.summary import QUESTIONS, answers, linked, over_lines, proof
from tests.harness.marked import marked

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks once at the load of the machine."""
    monkeypatch.setattr(bench_measured, "_LOOKS", 1)


def built(directory: Path, *rows: Row, name: str = "ingest", **measured: Any) -> Path:
    path = Result(name, list(rows), {"rounds": "1"}).write(directory, Measured())
    found = json.loads(path.read_text())
    found["measured"] |= measured
    path.write_text(json.dumps(found))
    return path


def the_page(*rows: Row, directory: Path) -> str:
    built(directory, *rows)
    return site_pages(read_all(directory))[ALL]


def section(page: str, head: str) -> str:
    return page.partition(f"{head}\n")[2].partition("\n#")[0]


def test_the_table_in_the_documents_is_what_the_kept_results_give() -> None:
    page = (ROOT / "docs" / "proof.md").read_text()
    results = ordered(read_all())
    assert marked(page, "benchmarks") == proof(results), "make bench KEEP=1"
    assert marked(page, "lines") == over_lines(results.get("lines")), "make bench KEEP=1"


def test_every_kept_result_is_of_a_benchmark_and_every_benchmark_says_what_it_measures() -> None:
    assert read_all().keys() <= set(NAMES)
    for name in NAMES:
        assert (ROOT / (module_name(name).replace(".", "/") + ".py")).exists()
        assert described(name)


def test_a_benchmark_without_a_result_is_not_run(tmp_path: Path) -> None:
    page = the_page(Row("rate", 10, "1/s"), directory=tmp_path)
    assert "| latency | not run |" in page
    assert "| [ingest](#ingest) | 2" in page


def test_a_goal_missed_and_a_worse_alternative_are_said_to_be_not_better(tmp_path: Path) -> None:
    built(
        tmp_path,
        Row("rate", 10, "1/s", 2.0, Against("another", 40)),
        Row("rate", 10, "1/s", 2.0, Against("a third", 5)),
        Row("memory", 50, "MB", 0.9, Against("another", 52), least=True),
        Row("time, p50", 7, "s", None, Against("another", 5), least=True),
        Row("time, p50", 7, "s", None, Against("a third", 6), least=True),
        Row("time, p95", 7, "s", None, Against("another", 5), least=True),
        Row("much", 7, "MB", None, Against("another", 7.1), least=True),
        Row("lost", 0, "messages", None, Against("another", 3), least=True, must=0),
        Row("lost", 0, "messages", None, Against("a third", 4), least=True, must=0),
    )
    made = site_pages(read_all(tmp_path))
    missed = section(made[ALL], "## Goals missed").strip().splitlines()
    assert missed == [
        f"- [ingest](#ingest): {line}. *Why:* not examined"
        for line in (
            "rate: 10 1/s (another: 40): 0.25 times, goal at least 2 times",
            "memory: 50 MB (another: 52): 0.962 times, goal at most 0.9 times",
        )
    ]
    page = made[ALL]
    worse = section(page, "### Worse than the alternative of the same run").strip()
    assert worse == "- [ingest](#ingest): time, p50: 7 s (another: 5)", "each value once, beside the best"
    alike = section(page, "### Less than 10 % better, which a shared machine cannot tell").strip()
    assert alike == "- [ingest](#ingest): much: 7 MB (another: 7.1)", (
        "a goal that was missed is told in front"
    )
    assert "| [ingest](#ingest) | " in page
    assert " | 2 | 2 |" in section(page, "## Goals"), "lost beside two alternatives is one goal"


def test_the_cause_of_each_goal_that_was_missed_is_named() -> None:
    missed = [line for kept in read_all().values() for line in kept.lines if line.met is False]
    assert [f"{line.benchmark}: {line.what}" for line in missed if cause(line) == "not examined"] == []


def test_a_goal_without_an_alternative_is_refused() -> None:
    with pytest.raises(ValueError, match="a goal is a ratio"):
        Row("rate", 10, "1/s", 20.0)


def test_rounds_show_their_median_and_spread_and_their_ratio_is_taken_round_by_round(tmp_path: Path) -> None:
    row = Row("rate", (10, 30, 20), "1/s", 2.0, Against("another", (5, 10, 10)))
    assert row.times() == [2.0, 3.0, 2.0]
    page = the_page(row, directory=tmp_path)
    assert "| rate | 20 (10–30) | 1/s | another: 10 | 2 (2–3) | at least 2 times | met |" in page


def test_a_ratio_to_nothing_is_none_and_less_is_better_turns_it_round() -> None:
    assert Row("lost", 3, "messages", None, Against("another", 0), least=True).as_json()["ratio"] is None
    cells = Row("memory", 20, "MB", 3.0, Against("another", 10), least=True).as_json()
    assert (cells["times"], cells["ratio"], cells["met"]) == (2.0, 0.5, True)


def test_a_result_says_when_and_beside_what_load_it_was_measured(tmp_path: Path) -> None:
    built(tmp_path, Row("rate", 1, "1/s"), date="2026-11-21T18:00:00+00:00", commit="abc+", load_before=3.25)
    page = site_pages(read_all(tmp_path))[ALL]
    assert "Measured 2026-11-21 18:00 UTC, at commit abc, with changes, in " in page
    assert "load 3.25 before" in page
    assert "rounds 1." in page


def test_only_what_was_run_since_is_kept(tmp_path: Path) -> None:
    results, kept = tmp_path / "build", tmp_path / "kept"
    quiet: dict[str, Any] = {"load_before": 0.1, "load_after": 0.1, "stolen": 0.0}
    built(results, Row("rate", 1, "1/s"), date="2026-11-21T18:00:00+00:00", **quiet)
    assert keep(results, kept) == {"ingest": "kept"}
    assert keep(results, kept) == {}
    built(results, Row("rate", 2, "1/s"), date="2026-11-20T18:00:00+00:00", **quiet)
    assert keep(results, kept) == {}
    built(results, Row("rate", 3, "1/s"), date="2026-11-21T18:00:01+00:00", **quiet)
    assert keep(results, kept) == {"ingest": "kept"}
    assert read(kept / "ingest.json").lines[0].value == 3


@pytest.mark.parametrize("load", [{"load_before": 3.0}, {"load_after": 2.0}, {"stolen": 0.2}])
def test_a_run_under_load_says_so_and_does_not_take_the_place_of_a_quiet_one(
    tmp_path: Path, load: dict[str, Any]
) -> None:
    results, kept = tmp_path / "build", tmp_path / "kept"
    loads: dict[str, Any] = {"load_before": 0.1, "load_after": 0.1, "stolen": 0.0} | load
    built(results, Row("rate", 1, "1/s"), date="2026-11-21T18:00:00+00:00", **loads)
    assert keep(results, kept) == {"ingest": "kept"}, "better than nothing"
    assert "**under load**, load" in site_pages(read_all(kept))[ALL]
    quiet: dict[str, Any] = {"load_before": 1.5, "load_after": 0.1, "stolen": 0.05}
    built(results, Row("rate", 2, "1/s"), date="2026-11-21T18:00:01+00:00", **quiet)
    assert keep(results, kept) == {"ingest": "kept"}
    assert ", quiet, load" in site_pages(read_all(kept))[ALL]
    built(results, Row("rate", 3, "1/s"), date="2026-11-21T18:00:02+00:00", **loads)
    assert keep(results, kept)["ingest"].startswith("not kept: load")
    assert read(kept / "ingest.json").lines[0].value == 2


def test_a_failed_row_stands_on_the_page_with_its_reason_and_a_whole_result_is_worth_more(
    tmp_path: Path,
) -> None:
    results, kept = tmp_path / "build", tmp_path / "kept"
    result = Result("ingest", [Row("rate", 1, "1/s")])
    with result.part("readings of Telegraf"):
        raise RuntimeError("no compiler")
    result.rows.append(Row("after it", 2, "1/s"))
    path = result.write(results, Measured())
    assert keep(results, kept) == {"ingest": "kept"}
    page = site_pages(read_all(kept))[ALL]
    assert "- readings of Telegraf: RuntimeError: no compiler" in page
    assert "| after it | 2 |" in page
    quiet: dict[str, Any] = {"load_before": 0.1, "load_after": 0.1, "stolen": 0.0}
    failed = json.loads(path.read_text())
    built(results, Row("rate", 3, "1/s"), date="2100-01-01T00:00:00+00:00", **quiet)
    assert keep(results, kept) == {"ingest": "kept"}
    failed["measured"] |= quiet | {"date": "2100-01-02T00:00:00+00:00"}
    path.write_text(json.dumps(failed))
    assert keep(results, kept)["ingest"].startswith("not kept: readings of Telegraf failed")


def test_rows_of_a_table_stand_as_a_line_a_case(tmp_path: Path) -> None:
    rows = [Row(f"{case}: {what}", 5, "ms") for case in ("10 a second", "100") for what in ("p50", "p99")]
    built(tmp_path, *rows[:3], name="lines")
    page = site_pages(read_all(tmp_path))[ALL]
    assert "|  | p50 (ms) | p99 (ms) |\n| --- | --- | --- |\n| 10 a second | 5 | 5 |\n| 100 | 5 |  |" in page


def test_sides_are_measured_in_turns_and_the_others_go_on_without_one_that_fails() -> None:
    order: list[str] = []

    def one() -> float:
        order.append("a")
        return len(order)

    def other() -> float:
        order.append("b")
        if len(order) > 2:
            raise OSError("gone")
        return len(order)

    result = Result("ingest")
    found = interleaved(result, {"a": one, "b": other}, 3)
    assert order == ["a", "b", "a", "b", "a"]
    assert found == {"a": [1, 3, 5]}
    assert [(part.what, part.why) for part in result.failed] == [("b", "OSError: gone")]


def test_a_file_that_is_no_result_is_refused_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "ingest.json").write_text('{"rows": []}')
    with pytest.raises(ValueError, match=r"ingest\.json is no result"):
        read_all(tmp_path)


def test_the_kept_results_answer_every_question() -> None:
    assert [one.question for one in answers(read_all())] == [*QUESTIONS]


def test_a_question_is_answered_by_one_alternative_in_a_line(tmp_path: Path) -> None:
    thin = "idle link, three classes, profile thin"
    idle = "idle link, one class, at rest (rest_after = 1m)"
    raw = "raw JetStream, one durable source"
    built(
        tmp_path,
        Row(thin, (1, 2, 3), "MB/day", None, Against(raw, 1234567), least=True),
        Row(idle, 30, "MB/day", None, Against(raw, 10), least=True),
        Row("another", 5, "s", None, Against(raw, 1)),
        name="wire",
        load_before=9.0,
    )
    found = read_all(tmp_path)
    lines = proof(found).splitlines()[2:4]
    assert [line.partition("? | ")[2] for line in lines] == [
        f"30 MB/day | {raw}: 10 | **3 times worse**, under load | [wire](../bench/results/wire.json) |",
        f"2 (1–3) MB/day | {raw}: 1,235,000 | 620,000 times better, under load | {linked('wire')} |",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1234567, "1,235,000"), (65.213, "65.21"), (0.667, "0.667"), (12.0, "12"), (99999, "100,000")],
)
def test_a_figure_has_four_digits_that_count(value: float, text: str) -> None:
    assert figure(value) == text


def fails() -> Result:
    """A benchmark that has measured one row when something ends it."""
    with measuring("rules", {"rounds": "2"}) as result:
        result.rows.append(Row("a", 1.0, "s"))
        raise OSError("the load ended")


def breaks() -> Result:
    """One that does not even begin."""
    raise RuntimeError("no rsyslog")


def test_a_benchmark_that_fails_keeps_the_rows_that_it_has(tmp_path: Path) -> None:
    with pytest.raises(UnfinishedError, match="after 1 rows: OSError: the load ended") as told:
        fails()
    path = told.value.result.write(tmp_path / "built", Measured())
    found = json.loads(path.read_text())
    assert [row["what"] for row in found["rows"]] == ["a"]
    assert found["failed"] == [{"what": "all that was still to come", "why": "OSError: the load ended"}]


def test_the_others_run_after_a_benchmark_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ways = {"bench.rules": fails, "bench.peers": breaks, "bench.audit": lambda: Result("audit", [])}
    monkeypatch.setattr(bench_main, "BUILT", tmp_path)
    monkeypatch.setattr("importlib.import_module", lambda name: SimpleNamespace(run=ways[name]))
    assert bench_main.main(["rules,peers", "audit"]) == 1
    assert {path.stem for path in tmp_path.iterdir()} == {"rules", "peers", "audit"}
    assert read(tmp_path / "peers.json").failed == (Failed("all of it", "RuntimeError: no rsyslog"),)
    assert "no rsyslog" in capsys.readouterr().err
    assert keep(tmp_path, tmp_path / "kept")["audit"] == "not kept: it has no rows"
