"""What a job says of a lake or a stream that is not there, most often for a slip of the pen."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from agent.contract import Exit
from hub_jobs.refine import run as refine
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


@pytest.mark.parametrize(("job", "table"), [(refine, "bronze"), (rollup, "readings")])
def test_a_job_that_stays_says_each_time_that_its_lake_is_not_there_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], job: ModuleType, table: str
) -> None:
    """Its disk may not be mounted yet: 2 would end `--every`, and systemd would not start it again."""
    for lake in (tmp_path, tmp_path / "none"):
        assert job.main(["--lake", str(lake)]) is Exit.FAILED
        said = capsys.readouterr().err
        assert f"there is no table {lake / table}: mount the disk of the lake, correct --lake" in said
    assert list(tmp_path.iterdir()) == []
