"""What comes wrong, or lies wrong on the disk: a row of `quarantine` or a clear failure, never a wrong table
and never half a commit."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import zstandard

from agent.contract import Exit
from hub_jobs.audit import run as audit
from hub_jobs.refine import run as refine
from hub_jobs.rollup import run as rollup
from hub_jobs.tables.delta import ensure_table
from hub_jobs.tables.schemas import digest
from tests.spark.lakes import add_bronze, contents
from tests.unit.hub_jobs.rows import OTHER_RUN, batch_headers, batch_row, direct_row, row

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

LINE = b'{"metric":"m","value":1}\n'
GOOD = b'{"metric":"good","value":1}\n'


def _line(field: bytes) -> bytes:
    return b'{"metric":"m",%b}\n' % field


def _packed(payload: bytes, n: int, count: int = 1) -> dict[str, Any]:
    """A batch whose payload is these very bytes."""
    return batch_row(b"", n=n, count=count) | {"payload": payload, "digest": digest(payload)}


def _bomb() -> bytes:
    """A gibibyte of nothing in a frame that does not say its size."""
    packer = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    piece = bytes(2**24)
    return b"".join([*(packer.compress(piece) for _ in range(64)), packer.flush()])


def _messages() -> list[tuple[dict[str, Any], list[tuple[int | None, str]]]]:
    """Rows of bronze, each with what of it is to be in quarantine: line and reason."""
    whole = zstandard.compress(GOOD * 20)
    spoiled = whole[:-4] + bytes(4)
    return [
        (_packed(spoiled[:-4], 1, 20), [(None, "corrupt")]),
        (_packed(b"\x28\xb5\x2f\xfdnonsense", 2), [(None, "corrupt")]),
        (batch_row(GOOD * 2 + GOOD[:-7], n=3, count=3), [(2, "bad line")]),
        (batch_row(GOOD * 2, n=4, count=3), [(None, "wrong count")]),
        (_packed(_bomb(), 5), [(None, "too large")]),
        (batch_row(GOOD + _line(b'"value":1,"tags":{"t":"%b"}' % (b"x" * 2**20)), n=6), [(1, "bad line")]),
        (
            batch_row(GOOD + _line(b'"value":NaN') + _line(b'"value":1e999'), n=7),
            [(1, "bad line"), (2, "bad line")],
        ),
        (direct_row(b"NaN"), [(0, "bad message")]),
        (batch_row(LINE * 2, n=4), [(None, "other content under a known id")]),
        (
            row(GOOD, "tel.edge-2.normal._batch.http", batch_headers(1, 1), **{"class": None}),
            [(None, "foreign subject")],
        ),
        (batch_row(GOOD, n=11, domain=None) | {"class": None}, [(None, "unknown source")]),
        (
            batch_row(_line(b'"value":1,"ts":-1') + _line(b'"value":1,"ts":"soon"'), n=12),
            [(0, "bad line"), (1, "bad line")],
        ),
        (
            batch_row(
                _line(b'"value":1,"ts":"1970-01-01T00:00:00Z"')
                + _line(b'"value":2,"ts":"2099-12-31T23:59:59Z"'),
                n=13,
            ),
            [],
        ),
    ]


def test_what_can_not_be_taken_is_in_quarantine_with_its_reason_and_the_rest_in_the_table(
    tmp_path: Path,
) -> None:
    given = _messages()
    add_bronze(tmp_path, [{**one, "source_seq": at} for at, (one, _) in enumerate(given, 1)])

    assert refine.main(["--lake", str(tmp_path)]) == Exit.WELL

    named = contents(tmp_path, "quarantine", "seq", "line", "reason")
    due = [(seq, *one) for seq, (_, expected) in enumerate(given, 1) for one in expected]
    assert sorted(named, key=str) == sorted(due, key=str)
    assert all(len(row or b"") <= 1024 for row in contents(tmp_path, "quarantine", "excerpt"))
    taken = contents(tmp_path, "readings", "n", "index", "metric")
    assert taken == [
        (13, 0, "m"),
        (13, 1, "m"),
        (3, 0, "good"),
        (3, 1, "good"),
        (6, 0, "good"),
        (7, 0, "good"),
    ]
    odd = sorted(ts for ts, n in contents(tmp_path, "readings", "ts", "n") if n == 13)
    assert odd == [datetime(1970, 1, 1, tzinfo=UTC), datetime(2099, 12, 31, 23, 59, 59, tzinfo=UTC)]
    assert rollup.main(["--lake", str(tmp_path)]) == Exit.WELL
    assert {row.year for row in contents(tmp_path, "rollup_1d", "window")} >= {1970, 2099}
    assert audit.main(["--lake", str(tmp_path)]) == Exit.WELL, "all of it is accounted for"


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A refined lake: two batches in two files of bronze, one with a bad line."""
    where = tmp_path / "lake"
    given = [batch_row(GOOD * 3, n=1, source_seq=1), batch_row(GOOD + b"bad\n", n=2, source_seq=2)]
    add_bronze(where, given, files=2)
    return where


def _refine(lake: Path, capfd: pytest.CaptureFixture[str]) -> tuple[Exit, str]:
    capfd.readouterr()
    code = refine.main(["--lake", str(lake)])
    return code, capfd.readouterr().err


def _state(lake: Path) -> list[Any]:
    return [contents(lake, "readings", "n", "index"), contents(lake, "quarantine", "seq", "line", "reason")]


REFINED: list[list[Any]] = [[(1, 0), (1, 1), (1, 2), (2, 0)], [(2, 1, "bad line")]]


def test_a_table_that_was_deleted_is_made_again_or_missed_in_words(
    lake: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _refine(lake, capfd)
    for name in ("bronze", "readings", "quarantine"):
        changed = tmp_path / name
        shutil.copytree(lake, changed)
        shutil.rmtree(changed / name)
        code, said = _refine(changed, capfd)
        if name == "bronze":
            assert (code, _state(changed)) == (Exit.FAILED, REFINED)
            assert f"table {changed / 'bronze'} is gone" in said
        elif name == "readings":
            assert (code, _state(changed)) == (Exit.WELL, REFINED)
        else:
            assert (code, _state(changed)) == (Exit.WELL, [REFINED[0], []])
            assert audit.main(["--lake", str(changed)]) == Exit.LOSS
            assert "batch 2: indexes 1 of 2 are missing" in capfd.readouterr().out


def test_what_others_put_into_a_table_s_folder_is_not_read_and_a_false_commit_is_refused(
    lake: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _refine(lake, capfd)
    for name in ("bronze", "readings", "quarantine"):
        mine = next((lake / name).glob("*.parquet"))
        shutil.copy(mine, lake / name / "copy.parquet")
        (lake / name / "notes.txt").write_text("not a table")
        (lake / name / "event_date=2026-11-21").mkdir()
        shutil.copy(mine, lake / name / "event_date=2026-11-21" / mine.name)
    add_bronze(lake, [batch_row(GOOD, n=1, run=OTHER_RUN, source_seq=3)])

    assert _refine(lake, capfd)[0] == Exit.WELL
    assert _state(lake) == [sorted([*REFINED[0], (1, 0)]), REFINED[1]]
    assert audit.main(["--lake", str(lake)]) == Exit.WELL

    table = ensure_table(lake, "readings")
    (lake / "readings" / "_delta_log" / f"{table.delta.version() + 1:020}.json").write_text("not a commit")
    code, said = _refine(lake, capfd)
    assert code == Exit.FAILED
    assert f"table {lake / 'readings'} can't be read" in said
