"""Files that are gone, cut or changed in a bit: every way in which the jobs read says which file it is."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from hub_jobs.tables.compaction import rewrite
from hub_jobs.tables.delta import ensure_table
from hub_jobs.tables.parquet import PartWriter
from hub_jobs.tables.parquet_reading import UnreadableError, parquet_columns, parquet_file
from hub_jobs.tables.scan import batches
from hub_jobs.tables.schemas import BRONZE
from tests.faults.tools.disk import missing, small_disk
from tests.unit.hub_jobs.damage import cut, flip
from tests.unit.hub_jobs.rows import batch_row

PAYLOAD = bytes(range(256)) * 8


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Bronze of two files."""
    table = ensure_table(tmp_path, "bronze")
    for seq in (1, 2):
        with PartWriter(tmp_path, "bronze") as writer:
            row = batch_row(b"", seq=seq) | {"payload": PAYLOAD[seq:]}
            writer.write(pa.Table.from_pylist([row], BRONZE))
        table.commit(writer.files, {})
        table = ensure_table(tmp_path, "bronze")
    return tmp_path


FAULTS: list[tuple[Callable[[Path], None], str]] = [
    (Path.unlink, "it is gone"),
    (cut, "magic bytes"),
    (lambda file: flip(file, "payload"), "CRC checksum verification failed"),
]


@pytest.mark.parametrize(("plant", "fault"), FAULTS, ids=["gone", "cut", "a bit"])
def test_each_way_of_reading_names_the_file_that_can_not_be_read(
    lake: Path, plant: Callable[[Path], None], fault: str
) -> None:
    bad = sorted((lake / "bronze").glob("*.parquet"))[1]
    plant(bad)
    table = ensure_table(lake, "bronze")

    def group_by_group() -> None:
        with parquet_file(bad) as file:
            file.read_row_group(0)

    for read in (
        group_by_group,
        lambda: parquet_columns(bad, ["payload"]),
        lambda: list(batches(table, ["payload"])),
        lambda: list(batches(table, ["seq"], [("payload", "=", b"")])),
        lambda: rewrite(lake, table, [bad.name]),
    ):
        with pytest.raises(UnreadableError, match=fault) as raised:
            read()
        assert str(bad) in str(raised.value)
        assert raised.value.damaged
        again = pickle.loads(pickle.dumps(raised.value))
        assert (str(again), again.damaged) == (str(raised.value), True), "an executor raises it too"


def test_a_file_that_is_only_not_given_out_is_not_called_damaged(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = next((lake / "bronze").glob("*.parquet"))

    def refused(*_args: object, **_how: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pyarrow.parquet.ParquetFile.read_row_group", refused)
    with parquet_file(file) as held, pytest.raises(UnreadableError) as raised:
        held.read_row_group(0)
    assert not raised.value.damaged


def test_a_file_for_which_there_is_no_room_is_named(tmp_path: Path) -> None:
    if (reason := missing()) is not None:
        pytest.skip(reason)
    with small_disk(tmp_path / "disk", 16) as disk:
        ensure_table(disk.path, "bronze")
        disk.fill(but=100_000)
        rows = pa.Table.from_pylist([batch_row(b"") | {"payload": os.urandom(1_000_000)}], BRONZE)
        said = rf"file {disk.path}/bronze/part-.* can't be written: no space left on device; free some room"
        with pytest.raises(OSError, match=said), PartWriter(disk.path, "bronze") as writer:
            writer.write(rows)
        assert list((disk.path / "bronze").glob("part-*")) == []
