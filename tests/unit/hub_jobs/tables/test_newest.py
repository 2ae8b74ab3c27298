"""A snapshot that gives way to the table as it is now, by what was committed since."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hub_jobs.tables import commits
from hub_jobs.tables.delta import Table, TableError, ensure_table
from tests.spark.lakes import commit

NAME = "clocks"
ROW = {"domain": "edge-1", "boot": "b", "since": 0, "until": 1, "offset": 2, "by": 3}


def state(table: Table) -> tuple[object, ...]:
    return table.delta.version(), commits.active(table.delta), table.offset("x"), table.delta.metadata()


class AnotherWriter:
    """What others do to a table meanwhile."""

    def __init__(self, lake: Path) -> None:
        self.lake, self.copies = lake, lake.with_name("copies")
        self.times = 0

    def add(self) -> None:
        commit(self.lake, NAME, [ROW])

    def replace(self) -> None:
        commit(self.lake, NAME, [ROW], replace=True)

    def rewrite(self) -> None:
        table = ensure_table(self.lake, NAME)
        table.rewrite([], sorted(commits.active(table.delta))[:1], changed=True)

    def move_offset(self) -> None:
        self.times += 1
        ensure_table(self.lake, NAME).commit([], {"x": self.times})

    def set_property(self) -> None:
        self.times += 1
        ensure_table(self.lake, NAME).delta.alter.set_table_properties({"delta.appendOnly": "false"})

    def forget_log(self) -> None:
        ensure_table(self.lake, NAME).delta.create_checkpoint()
        for entry in sorted((self.lake / NAME / "_delta_log").glob("*.json"))[:-1]:
            entry.unlink()

    def copy(self) -> None:
        shutil.copytree(self.lake, self.copies, dirs_exist_ok=True)

    def put_back(self) -> None:
        if self.copies.exists():
            shutil.rmtree(self.lake)
            shutil.copytree(self.copies, self.lake)


doings = st.sampled_from([name for name in vars(AnotherWriter) if not name.startswith("_")])


@settings(max_examples=20)
@given(st.lists(st.lists(doings, max_size=4), min_size=1, max_size=3))
def test_whatever_others_did_the_newest_snapshot_is_the_one_that_opening_gives(
    rounds: list[list[str]],
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        writer = AnotherWriter(Path(directory, "lake"))
        table = ensure_table(writer.lake, NAME)
        for doing in rounds:
            for name in doing:
                getattr(writer, name)()
            table = table.newest()
            assert state(table) == state(ensure_table(writer.lake, NAME))


def test_nothing_is_committed_on_a_snapshot_that_gave_way(tmp_path: Path) -> None:
    planned = ensure_table(tmp_path, NAME)
    AnotherWriter(tmp_path).add()
    newest = planned.newest()
    with pytest.raises(AttributeError):
        planned.commit([], {"x": 1})
    newest.commit([], {"x": 2})
    assert newest.newest().offset("x") == 2


def test_a_table_that_went_or_is_of_a_newer_program_is_said(tmp_path: Path) -> None:
    table, other = ensure_table(tmp_path, NAME), ensure_table(tmp_path, NAME)
    other.delta.alter.set_table_properties({"petiole.version": "99"}, raise_if_not_exists=False)
    with pytest.raises(TableError, match="use the newer program"):
        table.newest()
    gone = ensure_table(tmp_path, "seen")
    shutil.rmtree(tmp_path / "seen")
    with pytest.raises(TableError, match="went away"):
        gone.newest()
