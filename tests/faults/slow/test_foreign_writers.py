"""Another program rewrites a table of windows that `rollup` is about to commit to."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.contract import Exit
from hub_jobs.refine import run as refine
from hub_jobs.rollup import run as rollup
from hub_jobs.tables.delta import ensure_table
from tests.faults.report import Case
from tests.harness.foreign import before_commit, compact
from tests.spark.lakes import add_bronze, contents
from tests.unit.hub_jobs.rows import batch_row

LINE = b'{"ts":1,"device":"d","metric":"m","value":1}\n'


def test_windows_that_another_program_writes_together_are_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    case.expected = "rollup ends with a conflict, and the next one makes the windows again: none twice"

    def rolled(n: int, ts: int) -> Exit:
        line = LINE.replace(b'"ts":1', b'"ts":%d' % ts)
        add_bronze(tmp_path, [batch_row(line, n, source_seq=n)])
        assert refine.main(["--lake", str(tmp_path)]) is Exit.WELL
        return rollup.main(["--lake", str(tmp_path)])

    def counts() -> list[int]:
        return [count for _, count in contents(tmp_path, "rollup_1m", "window", "count")]

    assert [rolled(1, 1), rolled(2, 7_200)] == [Exit.WELL] * 2
    assert len(ensure_table(tmp_path, "rollup_1m").delta.file_uris()) == 2
    happened = before_commit(monkeypatch, "rollup_1m", compact)

    assert rolled(3, 1) is Exit.CONFLICT

    assert happened
    assert counts() == [1, 1]
    assert rollup.main(["--lake", str(tmp_path)]) is Exit.WELL
    assert counts() == [2, 1]
    case.seen.append("the windows are those of all readings, none twice")
