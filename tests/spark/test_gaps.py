"""`gaps` with real Spark, over readings that came through bronze and refine."""

from __future__ import annotations

import json
import random
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agent.contract import COMMAND_METRIC, Exit
from hub_jobs.gaps import hear
from hub_jobs.gaps import run as gaps
from hub_jobs.rollup import run as rollup
from hub_jobs.tables.delta import ensure_table
from hub_jobs.tables.scan import file_paths
from tests.spark.lakes import commit, contents
from tests.spark.plants import Sent, bronze, every, fill, ns
from tests.unit.hub_jobs.rows import direct_row

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

DOCUMENT = Path(__file__).parents[2] / "docs" / "data-engineers.md"
START = datetime(2026, 11, 21, tzinfo=UTC)
END = START + timedelta(hours=6)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
AWAY = (START + 2 * HOUR, START + 2 * HOUR + 30 * MINUTE)


def plant() -> list[Sent]:
    """Six hours of devices that each do something else, and what some of them did before."""
    before = START - timedelta(days=1)
    steady = every(START - HOUR, END, MINUTE, but=AWAY)
    sent = [Sent(ts, "pump-1", metric, 1.0) for ts in steady for metric in ("flow", "heat")]
    # Two readings of one moment are no interval of nothing.
    sent += [Sent(ts, "pump-1", "flow", 2.0) for ts in steady]
    # A sensor that fails while its device goes on.
    sent += [
        Sent(ts, "pump-1", "shake", 1.0, tags=(("axis", "x"),))
        for ts in every(START, START + 3 * HOUR, MINUTE)
    ]
    late = START + 3 * HOUR
    sent += [
        Sent(ts, "pump-2", "heat", 1.0, 2 * HOUR if ts >= late else timedelta(milliseconds=500))
        for ts in every(START, START + 4 * HOUR, MINUTE)
    ]
    # Known from before: one that was due again, one whose time has not come, and an answer to a command.
    sent += [Sent(before + at * HOUR, "pump-3", "heat", 1.0) for at in range(8)]
    sent += [Sent(START - HOUR - at * 5 * HOUR, "pump-4", "level", 1.0) for at in range(7)]
    sent.append(Sent(before, "edge-1", COMMAND_METRIC, "{}", tags=(("id", "1"),)))
    # Events: three in three seconds, each ten minutes.
    door = every(START, END, 10 * MINUTE)
    sent += [Sent(ts + timedelta(seconds=at), "door", "open", True) for ts in door for at in range(3)]
    sent.append(Sent(START + HOUR, "once", "hello", "world", timedelta(seconds=-10)))
    # A whole domain that is gone.
    gone = every(START, START + HOUR, MINUTE)
    return sent + [Sent(ts, f"fan-{at}", "turns", 1.0, domain="edge-2") for ts in gone for at in range(2)]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, spark: object) -> Path:
    where = tmp_path_factory.mktemp("gaps")
    rows = bronze(plant())
    for at, arrived in enumerate((END - MINUTE, END + MINUTE)):
        rows.append(direct_row(b"21.5", arrived=ns(arrived) // 1000, source_seq=100_000 + at))
    fill(where, rows)
    return where


def looked(lake: Path, *arguments: str) -> dict[str, Any]:
    report = lake / "gaps.json"
    times = ["--from", START.isoformat(), "--to", END.isoformat()]
    assert gaps.main(["--lake", str(lake), "--json", str(report), *times, *arguments]) is Exit.WELL
    found: dict[str, Any] = json.loads(report.read_text())
    return found


@pytest.mark.parametrize("most", [0, hear.HERE_ROWS], ids=["by tasks", "here"])
def test_who_is_silent_what_has_holes_and_what_came_late_is_told_and_kept(
    lake: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(hear, "HERE_ROWS", most)
    shutil.rmtree(lake / "gaps", ignore_errors=True)
    found = looked(lake)
    lines = capsys.readouterr().out.splitlines()

    assert found["totals"] == {
        "devices": 9,
        "silent": 4,
        "unjudged": 2,
        "series": 9,
        "holes": 3,
        "missing": 2 * 29 + 180,
    }
    assert [(site["domain"], site["devices"], site["silent"]) for site in found["sites"]] == [
        ("edge-2", 2, 2),
        ("edge-1", 7, 2),
    ]
    assert [(device["device"], device["since"], device["usual"]) for device in found["silent"]] == [
        ("pump-2", "2026-11-21T03:59:00Z", 60.0),
        ("pump-3", "2026-11-20T07:00:00Z", 3_600.0),
    ]
    holes = [
        (hole["metric"], hole["series"], hole["open"], hole["seconds"], hole["missing"])
        for hole in found["holes"]
    ]
    assert holes == [("shake", 1, True, 10_860.0, 180), ("flow", 2, False, 1_800.0, 58)]
    series = {(row["device"], row["metric"]): row for row in found["series"]}
    flow, door = series["pump-1", "flow"], series["door", "open"]
    assert (flow["readings"], flow["median"], flow["p95"], flow["holes"]) == (331, 60.0, 60.0, 1)
    assert (door["readings"], door["median"], door["p95"], door["holes"]) == (108, 1.0, 598.0, 0)
    assert series["pump-1", "shake"]["tags"] == {"axis": "x"}
    late = {row["domain"]: row for row in found["lateness"]}
    counts = {name: count for name, count in late["edge-1"]["counts"].items() if count}
    # All of pump-1 (flow twice), the door; pump-2 quick at first and two hours late in the end; the direct
    # message has no time of its own.
    assert counts == {"ahead": 1, "to_1": 180, "to_10": 3 * 331 + 180 + 108, "to_86400": 60}
    assert late["edge-1"]["worst"] == 7_200
    assert late["edge-2"]["counts"]["to_10"] == 120

    assert "\n".join(["```text", *lines, "```"]) in DOCUMENT.read_text(), "the example in the document"
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80

    rows = contents(lake, "gaps", "kind", "device", "metric", "open", "silent", "missing")
    assert sorted(row for row in rows if row[0] == "hole") == [
        ("hole", "pump-1", "flow", False, None, 29),
        ("hole", "pump-1", "heat", False, None, 29),
        ("hole", "pump-1", "shake", True, None, 180),
    ]
    silent = {row[1]: row[4] for row in rows if row[0] == "device"}
    assert silent == dict.fromkeys(("fan-0", "fan-1", "pump-2", "pump-3"), True) | dict.fromkeys(
        ("pump-1", "pump-4", "door"), False
    ) | dict.fromkeys(("once", "pump"))
    assert sum(row[0] == "series" for row in rows) == 9


def test_series_of_one_name_are_told_apart_by_their_tags_and_tasks_find_what_one_process_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At random: intervals, tags in any order, moments that repeat, devices of one name in two domains."""
    chance, tags = random.Random(2), [{}, {"a": "1"}, {"a": "1", "b": "2"}, {"b": "2", "a": "1"}, {"a": "1,"}]
    rows = []
    for number in range(40):
        ts = START - timedelta(hours=chance.randrange(4))
        for _ in range(chance.randrange(1, 60)):
            ts += timedelta(seconds=chance.choice([0, 1, 60, 60, 60, 600, 5_000]))
            row = stored(f"pump-{number % 7}", "heat", [ts], 1.0)[0]
            rows.append({**row, "domain": f"edge-{number % 2}", "tags": tags[number % 5]})
    commit(tmp_path, "readings", rows[::2])
    commit(tmp_path, "readings", rows[1::2])
    found = looked(tmp_path)
    monkeypatch.setattr(hear, "HERE_ROWS", 0)
    assert looked(tmp_path) | {"at": None} == found | {"at": None}
    assert found["totals"]["series"] == len(
        {(row["domain"], row["device"], *sorted(row["tags"].items())) for row in rows if row["ts"] >= START}
    )


def test_what_the_hub_has_not_taken_in_yet_is_no_silence(lake: Path) -> None:
    """A look that would go on until tomorrow ends when the newest reading arrived."""
    newest = END + MINUTE
    options = gaps.GapsOptions(lake, None, END + 24 * HOUR, HOUR, 3.0, None, None)
    assert gaps.window(options, newest) == (newest - 24 * HOUR, newest)
    assert gaps.main(["--lake", str(lake), "--from", (END + HOUR).isoformat()]) is Exit.USAGE


def stored(device: str, metric: str, moments: list[datetime], value: float | str) -> list[dict[str, Any]]:
    """Rows of `readings` of a series."""
    number, text = (None, value) if isinstance(value, str) else (value, None)
    series = {"domain": "edge-1", "device": device, "metric": metric, "tags": {"axis": "x"}}
    said = {"ts_source": "device", "value": number, "text": text}
    return [{"ts": ts, "arrived": ts + MINUTE, **series, **said} for ts in moments]


@pytest.mark.parametrize("most", [0, hear.HERE_ROWS], ids=["by tasks", "here"])
def test_a_look_back_reads_no_readings_that_rollup_has_taken_in_and_finds_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(hear, "HERE_ROWS", most)
    chance = random.Random(1)

    def past(count: int, since: datetime = START - timedelta(days=8)) -> list[datetime]:
        seconds = int((START - since).total_seconds())
        return [since + timedelta(seconds=chance.randrange(seconds)) for _ in range(count)]

    numbers = [row for at in range(5) for row in stored(f"pump-{at}", "heat", past(60), 1.5)]
    texts = stored("pump-1", "state", past(60), "on") + stored("pump-2", "heat", past(60), "off")
    window = stored("pump-1", "heat", every(START, END, 10 * MINUTE), 2.0)
    plain, rolled = tmp_path / "plain", tmp_path / "rolled"
    commit(plain, "readings", numbers)
    (file,) = file_paths(ensure_table(plain, "readings"))
    commit(plain, "readings", texts)
    shutil.copytree(plain, rolled)
    assert rollup.main(["--lake", str(rolled)]) is Exit.WELL
    for lake in (plain, rolled):
        commit(lake, "readings", window)

    read = rolled / "readings" / file.name
    read.rename(tmp_path / file.name)
    found = looked(rolled)
    (tmp_path / file.name).rename(read)
    assert found | {"at": None} == looked(plain) | {"at": None}
    assert found["totals"]["devices"] == 5

    late = stored("pump-3", "heat", past(9, START - 4 * HOUR), 3.0)
    for lake in (plain, rolled):
        commit(lake, "readings", late)
    within_an_hour = ["--from", (START - 90 * MINUTE).isoformat()]
    assert looked(rolled, *within_an_hour) | {"at": None} == looked(plain, *within_an_hour) | {"at": None}
