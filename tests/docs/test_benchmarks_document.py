"""docs/benchmarks.md and its pictures are what the kept results give, and say what is not better."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench import NAMES, module_name
from bench import __main__ as bench_main
from bench.kept import figure, read, read_all
from bench.page import described
from bench.report import documents, keep
from bench.result import Against, Measured, Result, Row, UnfinishedError, measuring

ROOT = Path(__file__).parents[2]


def built(directory: Path, *rows: Row, name: str = "ingest", **measured: Any) -> Path:
    path = Result(name, list(rows), {"rounds": "1"}).write(directory, Measured())
    found = json.loads(path.read_text())
    found["measured"] |= measured
    path.write_text(json.dumps(found))
    return path


def the_page(*rows: Row, directory: Path) -> str:
    built(directory, *rows)
    return documents(read_all(directory))["benchmarks.md"]


def section(page: str, head: str) -> str:
    return page.partition(f"{head}\n")[2].partition("\n#")[0]


def test_the_page_and_its_pictures_are_what_the_kept_results_give() -> None:
    made = documents(read_all())
    for path, text in made.items():
        assert (ROOT / "docs" / path).read_text() == text, f"docs/{path}: make bench-report"
    pictures = {f"images/{path.name}" for path in (ROOT / "docs/images").glob("bench-*.svg")}
    assert pictures == made.keys() - {"benchmarks.md"}


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
    page = the_page(
        Row("rate", 10, "1/s", 20.0, Against("another", 40)),
        Row("rate", 10, "1/s", 20.0, Against("a third", 5)),
        Row("memory", 50, "MB", 64.0, Against("another", 52), least=True),
        directory=tmp_path,
    )
    assert section(page, "### Goals missed").strip() == "- [ingest](#ingest): rate: 10 1/s, goal 20"
    worse = section(page, "### Worse than the alternative of the same run").strip()
    assert worse == "- [ingest](#ingest): rate: 10 1/s (another: 40)"
    assert "memory: 50 MB (another: 52)" in section(
        page, "### Less than 10 % better, which one run on a shared machine cannot tell"
    )
    assert "| [ingest](#ingest) | " in page
    assert " | 1 | 1 |" in section(page, "## Goals")


def test_a_result_says_when_and_beside_what_load_it_was_measured(tmp_path: Path) -> None:
    built(tmp_path, Row("rate", 1, "1/s"), date="2026-11-21T18:00:00+00:00", commit="abc+", load_before=3.25)
    page = documents(read_all(tmp_path))["benchmarks.md"]
    assert "Measured 2026-11-21 18:00 UTC, at commit abc, with changes, in " in page
    assert "load 3.25 before" in page
    assert "rounds 1." in page


def test_only_what_was_run_since_is_kept(tmp_path: Path) -> None:
    results, kept = tmp_path / "build", tmp_path / "kept"
    built(results, Row("rate", 1, "1/s"), date="2026-11-21T18:00:00+00:00")
    assert keep(results, kept) == ["ingest"]
    assert keep(results, kept) == []
    built(results, Row("rate", 2, "1/s"), date="2026-11-20T18:00:00+00:00")
    assert keep(results, kept) == []
    built(results, Row("rate", 3, "1/s"), date="2026-11-21T18:00:01+00:00")
    assert keep(results, kept) == ["ingest"]
    assert read(kept / "ingest.json").lines[0].value == 3


def test_a_file_that_is_no_result_is_refused_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "ingest.json").write_text('{"rows": []}')
    with pytest.raises(ValueError, match=r"ingest\.json is no result"):
        read_all(tmp_path)


def test_a_picture_is_svg_that_shows_each_figure(tmp_path: Path) -> None:
    built(tmp_path, Row("a < b", 1234567, "1/s", 2e6, Against("x & y", 400)), Row("alone", 5, "s"))
    made = documents(read_all(tmp_path))
    texts = [one.text or "" for one in ET.fromstring(made["images/bench-ingest.svg"]).iter()]
    assert "a < b (1/s)" in texts
    assert "1,235,000" in texts
    assert "x & y" in texts
    assert any(text.startswith("400 (×") for text in texts)
    assert not any("alone" in text for text in texts)
    assert "ingest" in made["images/bench-ratios.svg"]


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


def test_a_benchmark_that_fails_keeps_the_rows_that_it_has_and_they_are_not_published(tmp_path: Path) -> None:
    with pytest.raises(UnfinishedError, match="after 1 rows: OSError: the load ended") as told:
        fails()
    path = told.value.result.write(tmp_path / "built", Measured())
    found = json.loads(path.read_text())
    assert [row["what"] for row in found["rows"]] == ["a"]
    assert found["unfinished"] == "OSError: the load ended"
    assert keep(tmp_path / "built", tmp_path / "kept") == []


def test_the_others_run_after_a_benchmark_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ways = {"bench.rules": fails, "bench.peers": breaks, "bench.audit": lambda: Result("audit", [])}
    monkeypatch.setattr(bench_main, "BUILT", tmp_path)
    monkeypatch.setattr("importlib.import_module", lambda name: SimpleNamespace(run=ways[name]))
    assert bench_main.main(["rules", "peers", "audit"]) == 1
    assert {path.stem for path in tmp_path.iterdir()} == {"rules", "audit"}
    assert "no rsyslog" in capsys.readouterr().err
