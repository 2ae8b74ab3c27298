"""What `gaps` decides without Spark: times, windows, the worst of many, and how it reads."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from agent.contract import Exit
from hub_jobs.gaps import run as gaps
from hub_jobs.gaps.cadence import BUCKETS
from hub_jobs.gaps.outages import COLUMNS, LISTED, Worst, worst
from hub_jobs.gaps.report import GapFindings, Late, as_json, as_text
from hub_jobs.tables.delta import ensure_table
from hub_jobs.tables.schemas import GAPS

END = datetime(2026, 11, 21, 6, tzinfo=UTC)
SCHEMA = pa.schema([GAPS.field(name) for name in COLUMNS])


def device(domain: str, name: str, silent: bool | None, seconds: float = 60) -> dict[str, Any]:
    since = END - timedelta(seconds=seconds)
    return {
        "kind": "device",
        "domain": domain,
        "device": name,
        "since": since,
        "until": END,
        "readings": 1,
        "series": 1,
        "usual": 10.0,
        "silent": silent,
    }


def hole(name: str, metric: str, since: float, seconds: float) -> dict[str, Any]:
    begin = END - timedelta(seconds=since)
    return {
        "kind": "hole",
        "domain": "edge-1",
        "device": name,
        "metric": metric,
        "since": begin,
        "until": begin + timedelta(seconds=seconds),
        "open": False,
        "missing": 3,
        "usual": 10.0,
    }


def series(metric: str, missing: int) -> dict[str, Any]:
    return {
        "kind": "series",
        "domain": "edge-1",
        "device": "a",
        "metric": metric,
        "tags": [("axis", "x")],
        "readings": 5,
        "holes": 1,
        "missing": missing,
    }


def found_in(rows: list[dict[str, Any]], size: int) -> Worst:
    table = pa.Table.from_pylist(rows, SCHEMA)
    return worst(table.slice(at, size) for at in range(0, len(rows), size))


def told(worst: Worst, late: list[Late] | None = None, end: datetime = END) -> GapFindings:
    return GapFindings(end, end - timedelta(days=1), end, 3.0, worst, late or [])


def test_the_worst_are_the_same_however_the_rows_are_cut_into_pieces() -> None:
    rows = [
        device("edge-1", "a", True, 100),
        device("edge-1", "b", False),
        device("edge-1", "c", None),
        device("edge-1", "d", True, 5_000),
        device("edge-2", "e", True, 70),
        hole("a", "heat", 600, 120),
        hole("a", "flow", 595, 121),
        hole("a", "flow", 400, 300),
        series("heat", 3),
        series("flow", 9),
    ]
    whole = found_in(rows, 100)
    assert whole == found_in(rows, 1) == found_in(rows[::-1], 3)
    assert [one.device for one in whole.silent] == ["d", "a"]
    assert [(site.domain, site.devices, site.silent) for site in whole.sites] == [
        ("edge-2", 1, 1),
        ("edge-1", 4, 2),
    ]
    assert whole.sites[1].since == END - timedelta(seconds=60)
    assert [(hole.series, hole.metric, hole.seconds, hole.missing) for hole in whole.holes] == [
        (1, "flow", 300, 3),
        (2, "flow", 126, 6),
    ]
    assert [(pace.metric, pace.tags) for pace in whole.series] == [
        ("flow", {"axis": "x"}),
        ("heat", {"axis": "x"}),
    ]
    totals = whole.totals
    assert (totals.devices, totals.silent, totals.unjudged, totals.series) == (5, 3, 1, 2)
    assert (totals.holes, totals.missing) == (3, 9)


def test_however_much_there_is_the_text_fits_a_terminal_and_the_lists_end() -> None:
    rows = [
        device(f"domain-with-a-long-name-{at % 50:02}", f"a-device-with-a-long-name-{at}", at % 50 > 2)
        for at in range(2_000)
    ]
    rows += [device("edge-1", f"pump-{at}", at > 0, 86_400.0 * at) for at in range(2_000)]
    rows += [
        hole(f"a-device-with-a-long-name-{at}", "a_metric_with_a_long_name", 86_000, 80_000 + at)
        | {"missing": 1_234_567, "usual": 86_399.0, "open": True}
        for at in range(2_000)
    ]
    rows += [series(f"m{at}", at) for at in range(2_000)]
    late = [
        Late(f"domain-with-a-long-name-{at}", dict.fromkeys(BUCKETS, 0) | {name: 10**at}, -86_399.0)
        for at, name in enumerate(BUCKETS)
    ]
    found = told(found_in(rows, 500), late)

    lines = as_text(found).splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    body = json.loads(as_json(found))
    assert [len(body[name]) for name in ("silent", "holes", "series", "sites")] == [
        LISTED,
        LISTED,
        LISTED,
        51,
    ]
    assert body["totals"]["holes"] == 2_000


def test_nothing_found_is_said_in_words() -> None:
    text = as_text(told(found_in([device("edge-1", "a", False)], 10)))
    assert "no device is silent" in text
    assert "no series has a hole" in text
    assert "nothing is known of lateness" in text
    assert "no device is known" in as_text(told(found_in([], 10)))


def test_shares_are_of_a_domains_own_readings() -> None:
    counts = dict.fromkeys(BUCKETS, 0) | {"to_1": 9_999, "to_600": 1}
    text = as_text(told(found_in([], 10), [Late("edge-1", counts, 300)]))
    assert text.splitlines()[-1].split() == ["edge-1", "-", "100.0", "-", "-", "<0.1", "-", "-", "-", "5m"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--from", "yesterday"], "'yesterday' is not a time; write 2026-11-21T06:00:00Z"),
        (["--to", "2026-11-21T06:00:00"], "has no offset"),
        (["--from", "0001-01-01T00:00:00+14:00"], "outside of the years"),
        (
            ["--from", "2026-11-21T06:00:00Z", "--to", "2026-11-21T06:00:00+00:00"],
            "--from is not before --to",
        ),
        (["--look-back", "0d"], "'0d' is not a length of time; write 90s, 15m, 12h or 7d"),
        (["--look-back", "9999999d"], "is not a length of time"),
        (["--factor", "1"], "'1' is not a number above 1"),
        (["--factor", "nan"], "'nan' is not a number above 1"),
    ],
)
def test_what_is_no_time_length_or_factor_is_refused_in_words(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        gaps.main(["--lake", str(tmp_path), *arguments])
    assert ended.value.code == Exit.USAGE
    assert said in capsys.readouterr().err


def test_a_lake_without_readings_starts_no_session(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gaps.main(["--lake", str(tmp_path)]) is Exit.USAGE
    assert "there is no table" in capsys.readouterr().err
    ensure_table(tmp_path, "readings")
    assert gaps.main(["--lake", str(tmp_path)]) is Exit.WELL
    assert "nothing to do" in capsys.readouterr().err
    (tmp_path / "readings" / "_delta_log" / f"{0:020}.json").write_text("no log")
    assert gaps.main(["--lake", str(tmp_path)]) is Exit.FAILED
    assert "can't be read" in capsys.readouterr().err


def test_a_look_ends_when_the_newest_reading_arrived() -> None:
    options = gaps.GapsOptions(Path("/"), None, END + timedelta(days=1), timedelta(days=7), 3.0, None, None)
    assert gaps.window(options, END) == (END - timedelta(days=1), END)
    first = datetime(1, 1, 1, 1, tzinfo=UTC)
    assert gaps.window(replace(options, end=first), END) == (first - timedelta(hours=1), first)
