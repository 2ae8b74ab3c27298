"""What is said of a lake whose disk takes no writes, or goes away: what, where, and what to do."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest

from hub_jobs.tables.delta import ConflictError, TableError, ensure_table
from hub_jobs.tables.parquet import write_rows
from hub_jobs.tables.parquet_reading import UnreadableError
from hub_jobs.tables.places import to_do, unwritable
from hub_jobs.tables.scan import rows
from hub_jobs.tables.schemas import BRONZE
from tests.faults.tools.disk import missing, small_disk
from tests.spark.lakes import add_bronze
from tests.unit.hub_jobs.rows import batch_row

needs_disk = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@needs_disk
def test_a_full_disk_is_named_before_anything_is_done_and_maintain_may_go_on(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 16) as disk:
        ensure_table(disk.path, "bronze")
        disk.fill(but=4 * 2**20)
        for name in ("bronze", "readings"):
            with pytest.raises(TableError, match=f"the disk of {disk.path}.* has [34] MiB left: free 8 MiB"):
                ensure_table(disk.path, name)
        assert ensure_table(disk.path, "bronze", room=0).delta.version() == 0


@needs_disk
def test_a_read_only_file_system_is_named_before_anything_is_done(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 16) as disk:
        ensure_table(disk.path, "bronze")
        subprocess.run(["mount", "-o", "remount,ro", str(disk.path)], check=True)
        said = f"nothing can be written to {disk.path}/bronze: read-only file system; mount it for writing"
        with pytest.raises(TableError, match=said):
            ensure_table(disk.path, "bronze")
        assert unwritable(disk.path / "none" / "readings", 0) == said.replace("/bronze", "") + (
            "; Linux mounts a damaged file system read-only, and its log says why"
        )


def test_a_look_at_a_directory_leaves_nothing_there(tmp_path: Path) -> None:
    assert unwritable(tmp_path / "not" / "yet", 0) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["EROFS", "EACCES", "EPERM", "ENOSPC", "EDQUOT", "EIO", "ESTALE", "ENOENT"])
def test_each_error_of_a_disk_is_named_with_what_to_do(name: str) -> None:
    number = getattr(errno, name)
    what, _, remedy = to_do(OSError(number, "x")).partition("; ")
    assert (what, remedy != "") == (os.strerror(number).lower(), True)
    assert to_do(OSError("no number")) == ""


def test_a_table_that_goes_away_is_no_damage_and_nothing_is_committed_in_its_place(tmp_path: Path) -> None:
    """As where its disk is unmounted: the mount point stays, and is empty."""
    lake = tmp_path / "lake"
    add_bronze(lake, [batch_row(b"", 1)])
    table = ensure_table(lake, "bronze")
    files = write_rows(lake, "bronze", pa.Table.from_pylist([batch_row(b"", 2)], BRONZE))
    shutil.rmtree(lake)
    lake.mkdir()
    with pytest.raises(UnreadableError, match="its table is gone; mount its disk again") as error:
        rows(table, ["seq"])
    assert not error.value.damaged
    with pytest.raises(ConflictError, match="went away while it was in use: mount its disk again"):
        table.commit(files, {})
    assert list(lake.iterdir()) == []


def test_another_table_in_the_place_of_one_in_use_is_not_taken_for_it(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    add_bronze(lake, [batch_row(b"", 1)])
    table = ensure_table(lake, "bronze")
    shutil.rmtree(lake)
    add_bronze(lake, [batch_row(b"", 1)])
    with pytest.raises(TableError, match="was replaced by another one while it was in use"):
        table.newest()
