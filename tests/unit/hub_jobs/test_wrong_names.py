"""What a job says of a lake or a stream that is not there, most often for a slip of the pen."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.contract import Exit
from hub_jobs.replay import run as replay
from hub_jobs.rollup import run as rollup
from tests.spark.lakes import add_bronze
from tests.unit.hub_jobs.rows import batch_row

LINE = b'{"ts":1,"device":"d","metric":"m","value":1}\n'


@pytest.mark.parametrize("named", [["TELEMETRY_O"], ["TELEMETRY_0", "--created", "then"]])
def test_replay_says_which_streams_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], named: list[str]
) -> None:
    add_bronze(tmp_path, [batch_row(LINE, 1)])
    assert replay.main(["--lake", str(tmp_path), "--from-seq", "1", "--stream", *named]) is Exit.USAGE
    message = capsys.readouterr().err
    assert f"has no rows of stream {named[0]}" in message
    assert "it has rows of TELEMETRY_0" in message
    assert not (tmp_path / "readings").exists()


def test_rollup_has_well_nothing_to_do_in_a_lake_only(tmp_path: Path) -> None:
    assert rollup.main(["--lake", str(tmp_path)]) is Exit.WELL
    assert rollup.main(["--lake", str(tmp_path / "none")]) is Exit.USAGE
