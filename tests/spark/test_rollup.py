"""Windows against a reference in plain Python, over late data, corrected data and many small files."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from agent.contract import Exit
from hub_jobs.maintain import run as maintain
from hub_jobs.rollup import run as rollup
from hub_jobs.tables.compaction import rewrite
from hub_jobs.tables.delta import ensure_table
from hub_jobs.tables.parquet import PartWriter
from hub_jobs.tables.scan import files
from hub_jobs.tables.schemas import READINGS
from tests.spark.lakes import contents

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

START = datetime(2026, 11, 21, 22, 30, tzinfo=UTC)
STEPS = {"rollup_1m": timedelta(minutes=1), "rollup_1h": timedelta(hours=1), "rollup_1d": timedelta(days=1)}
NUMBERS = ("count", "sum", "mean", "min", "max", "first", "last", "stddev", "increase", "rate")


class Reading(NamedTuple):
    ts: datetime
    device: str
    metric: str
    value: float | None
    tags: tuple[tuple[str, str], ...] = ()
    n: int = 1


def readings(seed: int, count: int, start: datetime = START) -> list[Reading]:
    """Three devices over three hours and midnight: a temperature with large values that spread little, a
    counter with resets, and texts, which have no windows."""
    chance = random.Random(seed)
    found = []
    counters: dict[str, float] = {}
    for number in range(count):
        ts = start + timedelta(milliseconds=number * 10_800_000 // count + chance.randrange(500))
        device = f"d{chance.randrange(3)}"
        counters[device] = 0.0 if chance.random() < 0.05 else counters.get(device, 0.0) + chance.randrange(10)
        tags = (("b", "x"), ("a", str(chance.randrange(2))))
        found += [
            Reading(ts, device, "heat", 1e9 + chance.random(), tags[:: chance.choice((1, -1))]),
            Reading(ts, device, "litres_total", counters[device]),
            Reading(ts, device, "state", None),
        ]
    return found


def store(lake: Path, given: Sequence[Reading], replaced: Sequence[str] = ()) -> None:
    rows = [
        {
            "ts": reading.ts,
            "ts_source": "device",
            "domain": "edge-1",
            "device": reading.device,
            "metric": reading.metric,
            "value": reading.value,
            "text": "on" if reading.value is None else None,
            "tags": list(reading.tags),
            "class": "normal",
            "run": "r",
            "n": reading.n,
            "index": at,
            "arrived": reading.ts,
            "event_date": reading.ts.date(),
        }
        for at, reading in enumerate(given)
    ]
    with PartWriter(lake, "readings") as writer:
        table = ensure_table(lake, "readings")
        writer.write(pa.Table.from_pylist(rows, READINGS))
    if replaced:
        table.rewrite(writer.files, replaced, changed=True)
    else:
        table.commit(writer.files, {})


Key = tuple[datetime, str, str, frozenset[tuple[str, str]]]


def expected(given: Sequence[Reading], step: timedelta) -> dict[Key, dict[str, float | None]]:
    series: dict[tuple[str, str, frozenset[tuple[str, str]]], list[Reading]] = {}
    for reading in sorted(given, key=lambda reading: reading.ts):
        if reading.value is not None:
            series.setdefault((reading.device, reading.metric, frozenset(reading.tags)), []).append(reading)
    windows: dict[Key, list[tuple[float, float | None]]] = {}
    for name, held in series.items():
        for before, reading in zip([None, *held], held, strict=False):
            assert reading.value is not None
            grown = None
            if (
                name[1].endswith("_total")
                and before is not None
                and reading.ts - before.ts <= timedelta(hours=1)
            ):
                assert before.value is not None
                grown = reading.value - before.value if reading.value >= before.value else reading.value
            since_epoch = reading.ts - datetime(1970, 1, 1, tzinfo=UTC)
            window = reading.ts - since_epoch % step
            windows.setdefault((window, *name), []).append((reading.value, grown))
    found: dict[Key, dict[str, float | None]] = {}
    for key, pairs in windows.items():
        values = [value for value, _ in pairs]
        grew = [pair for _, pair in pairs if pair is not None]
        mean = math.fsum(values) / len(values)
        found[key] = {
            "count": len(values),
            "sum": math.fsum(values),
            "mean": mean,
            "min": min(values),
            "max": max(values),
            "first": values[0],
            "last": values[-1],
            "stddev": math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values)),
            "increase": math.fsum(grew) if grew else None,
            "rate": math.fsum(grew) / step.total_seconds() if grew else None,
        }
    return found


def held(lake: Path, name: str) -> dict[Key, dict[str, float | None]]:
    rows = contents(lake, name, "window", "device", "metric", "tags", *NUMBERS)
    found = {
        (row[0], row[1], row[2], frozenset(row[3])): dict(zip(NUMBERS, row[4:], strict=True)) for row in rows
    }
    assert len(found) == len(rows), "a window is there twice"
    return found


def check(lake: Path, given: Sequence[Reading]) -> None:
    for name, step in STEPS.items():
        wanted, found = expected(given, step), held(lake, name)
        assert found.keys() == wanted.keys()
        for key, numbers in wanted.items():
            for column, value in numbers.items():
                got = found[key][column]
                close = got == value or (
                    got is not None
                    and value is not None
                    and math.isclose(got, value, rel_tol=1e-9, abs_tol=1e-3)
                )
                assert close, (name, key, column, got, value)


def rolled(lake: Path, *arguments: str) -> None:
    assert rollup.main(["--lake", str(lake), *arguments]) is Exit.WELL


def test_windows_are_right_at_first_after_late_data_and_after_readings_were_changed(tmp_path: Path) -> None:
    assert rollup.main(["--lake", str(tmp_path)]) is Exit.FAILED, "there are no readings"
    given = readings(1, 400)
    store(tmp_path, given)
    rolled(tmp_path)
    check(tmp_path, given)
    before = {name: set(files(ensure_table(tmp_path, name))["path"].to_pylist()) for name in STEPS}
    rolled(tmp_path)
    for name, paths in before.items():
        assert set(files(ensure_table(tmp_path, name))["path"].to_pylist()) == paths, "nothing is new"

    # Late: into a window that is there, into an hour that is not, and from a clock that is wrong.
    late = [
        Reading(START + timedelta(seconds=61), "d0", "heat", 5.0, n=2),
        Reading(START + timedelta(days=2), "d1", "litres_total", 5.0, n=2),
        Reading(datetime(1970, 1, 1, tzinfo=UTC), "d2", "heat", 5.0, n=2),
    ]
    store(tmp_path, late)
    rolled(tmp_path)
    check(tmp_path, [*given, *late])

    # Corrected: the readings with the wrong clock get their right time, in the place of their file.
    table = ensure_table(tmp_path, "readings")
    wrong = [
        path
        for path, least in zip(
            files(table)["path"].to_pylist(), files(table)["min.ts"].to_pylist(), strict=True
        )
        if least.year == 1970
    ]
    late[2] = late[2]._replace(ts=START + timedelta(minutes=90))
    store(tmp_path, late, wrong)
    rolled(tmp_path)
    check(tmp_path, [*given, *late])


def test_an_hour_that_readings_left_has_no_windows_even_when_their_file_is_vacuumed(tmp_path: Path) -> None:
    wrong = Reading(datetime(1970, 1, 1, tzinfo=UTC), "d0", "heat", 5.0)
    store(tmp_path, [wrong])
    corrected = files(ensure_table(tmp_path, "readings"))["path"].to_pylist()
    rolled(tmp_path)

    right = wrong._replace(ts=START)
    store(tmp_path, [right], corrected)
    ensure_table(tmp_path, "readings").vacuum(0, dry_run=False)
    rolled(tmp_path)
    check(tmp_path, [right])


def test_of_two_rollups_at_once_the_one_that_is_behind_puts_nothing_over_what_the_other_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = readings(4, 60)
    store(tmp_path, given)
    late = Reading(START + timedelta(seconds=61), "d0", "heat", 5.0, n=2)
    put = rollup._put

    def overtaken(*work: Any) -> None:
        monkeypatch.setattr(rollup, "_put", put)
        store(tmp_path, [late])
        rolled(tmp_path)
        put(*work)

    monkeypatch.setattr(rollup, "_put", overtaken)
    assert rollup.main(["--lake", str(tmp_path)]) is Exit.CONFLICT
    check(tmp_path, [*given, late])


def test_files_that_were_only_written_together_are_not_rolled_again(tmp_path: Path) -> None:
    given = readings(2, 60)
    for at in range(0, len(given), 20):
        store(tmp_path, given[at : at + 20])
    rolled(tmp_path)
    table = ensure_table(tmp_path, "readings")
    known, paths = table.delta.version(), files(table)["path"].to_pylist()
    table.rewrite(rewrite(tmp_path, table, paths), paths)
    assert rollup.touched(ensure_table(tmp_path, "readings"), known) == []
    version = ensure_table(tmp_path, "rollup_1m").delta.version()
    rolled(tmp_path)
    assert ensure_table(tmp_path, "rollup_1m").delta.version() == version
    store(tmp_path, given[:1])
    hours = rollup.touched(ensure_table(tmp_path, "readings"), known)
    assert hours == [START.replace(minute=0), START.replace(minute=0) + timedelta(hours=1)]
    assert maintain.main(["--lake", str(tmp_path)]) is Exit.WELL


def test_quantiles_keep_their_promise_about_ranks_also_in_windows_made_of_windows(tmp_path: Path) -> None:
    chance = random.Random(3)
    values = [chance.lognormvariate(0, 2) for _ in range(20_000)]
    start = datetime(2026, 11, 21, tzinfo=UTC)
    store(
        tmp_path,
        [
            Reading(start + timedelta(milliseconds=at * 86_400_000 // len(values)), "d", "m", value)
            for at, value in enumerate(values)
        ],
    )
    rolled(tmp_path, "--quantiles")
    ((p50, p95, p99),) = contents(tmp_path, "rollup_1d", "p50", "p95", "p99")
    ranked = sorted(values)
    for found, rank in ((p50, 0.5), (p95, 0.95), (p99, 0.99)):
        below = sum(value <= found for value in ranked) / len(ranked)
        assert abs(below - rank) <= 0.0165


def test_hours_of_a_day_are_made_together() -> None:
    hours = [START + timedelta(hours=at) for at in range(2_000)]
    pieces = list(rollup.chunks(hours))
    assert [hour for piece in pieces for hour in piece] == hours
    for before, after in pairwise(pieces):
        assert before[-1].date() < after[0].date()
    assert all(len(piece) < 31 * 24 + 24 for piece in pieces)


def test_what_is_no_time_or_no_option_is_refused(tmp_path: Path) -> None:
    for arguments in (["--every", "soon"], ["--counters", "x"]):
        with pytest.raises(SystemExit):
            rollup.main(["--lake", str(tmp_path), *arguments])


def test_windows_outlive_the_readings_that_are_deleted_for_their_age(tmp_path: Path) -> None:
    given = readings(3, 60)
    store(tmp_path, given)
    assert rollup.main(["--lake", str(tmp_path)]) is Exit.WELL
    before = {name: contents(tmp_path, name) for name in STEPS}
    mark = START.replace(minute=0) + timedelta(hours=6)

    table = ensure_table(tmp_path, "readings")
    table.expire(files(table)["path"].to_pylist(), int(mark.timestamp()) * 1_000_000)
    store(tmp_path, [given[0]])
    new = Reading(mark + timedelta(hours=30), "d0", "heat", 1.0)
    store(tmp_path, [new])
    assert rollup.main(["--lake", str(tmp_path)]) is Exit.WELL

    for name, windows in before.items():
        now = contents(tmp_path, name)
        assert [window for window in now if window in windows] == windows
        assert len(now) == len(windows) + 1
