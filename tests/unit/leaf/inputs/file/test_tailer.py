"""Following real files through rotations, looks, crashes and restarts."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from agent import contract
from agent.leaf.inputs.file.open_file import TailRead
from agent.leaf.inputs.file.positions import FilePosition
from agent.leaf.inputs.file.tailer import QUIET, Tailer
from agent.leaf.inputs.formats import ReadLimits


class Reader:
    """A tailer, its clock, and what a store would hold: lines and position in one act."""

    def __init__(self, path: Path, *, from_end: bool = False) -> None:
        self.path = path
        self.now = 0.0
        self.stored: list[str] = []
        self.position: FilePosition | None = None
        self.looks: list[TailRead] = []
        self._from_end = from_end
        self.tailer = Tailer(str(path), from_end=from_end)

    def look(self, *, take: bool = True) -> bool:
        look = self.tailer.look(self.now, ReadLimits())
        self.looks.append(look)
        self.position = self.position or self.tailer.position
        if look.piece is not None and take:
            self.stored += look.piece.lines.decode().splitlines()
            self.position = look.piece.after
            self.tailer.take(look.piece)
        return look.piece is not None or look.more

    def settle(self) -> None:
        """Look until nothing happens for longer than a renamed file is waited for."""
        for _ in range(4):
            while self.look():
                pass
            self.now += QUIET

    def restart(self) -> None:
        self.tailer.close()
        self.tailer = Tailer(str(self.path), self.position, from_end=self._from_end)

    @property
    def lost(self) -> list[str]:
        return [look.lost for look in self.looks if look.lost is not None]


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    one = Reader(tmp_path / "a.log")
    yield one
    one.tailer.close()


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


class Rotations(RuleBasedStateMachine):
    """A writer that rotates both ways, a reader that is restarted: each line is stored once, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="petiole-follow-"))
        self.path = self.folder / "a.log"
        self.reader = Reader(self.path)
        self.written: list[str] = []
        self.ticks = itertools.count(1_700_000_000_000_000_000, 1_000_000_000)
        self.partial = False

    def stamp(self, path: Path) -> None:
        tick = next(self.ticks)
        os.utime(path, ns=(tick, tick))

    @initialize(lines=st.integers(0, 1), stores=st.booleans())
    def begin(self, lines: int = 1, stores: bool = True) -> None:
        if lines:
            self.write(lines)
        if stores:
            self.reader.settle()
        else:
            self.reader.look(take=False)

    @rule(count=st.integers(1, 3))
    def write(self, count: int) -> None:
        for _ in range(count):
            line = f"line {len(self.written)}"
            append(self.path, f"{line}\n")
            self.written.append(line)
        self.stamp(self.path)

    @rule()
    def write_a_line_in_two_parts(self) -> None:
        append(self.path, "li")
        self.stamp(self.path)
        self.reader.look()
        append(self.path, f"ne {len(self.written)}\n")
        self.written.append(f"line {len(self.written)}")
        self.stamp(self.path)

    @precondition(lambda self: self.path.exists())
    @rule()
    def rotate_by_renaming(self) -> None:
        self.shift()
        self.path.rename(self.folder / "a.log.1")

    @precondition(lambda self: self.path.exists() and self.path.stat().st_size)
    @rule()
    def rotate_by_copying_and_truncating(self) -> None:
        self.shift()
        shutil.copyfile(self.path, self.folder / "a.log.1")
        self.stamp(self.folder / "a.log.1")
        os.truncate(self.path, 0)
        self.stamp(self.path)

    @rule(take=st.booleans())
    def look(self, take: bool) -> None:
        self.reader.look(take=take)

    @rule()
    def time_passes(self) -> None:
        self.reader.now += QUIET

    @rule()
    def restart(self) -> None:
        self.reader.restart()

    def shift(self) -> None:
        for number in range(99, 0, -1):
            old = self.folder / f"a.log.{number}"
            if old.exists():
                old.rename(self.folder / f"a.log.{number + 1}")

    def teardown(self) -> None:
        for _ in range(20):
            self.reader.settle()
        self.reader.tailer.close()
        shutil.rmtree(self.folder)
        assert self.reader.stored == self.written
        assert self.reader.lost == []


TestRotations = Rotations.TestCase
TestRotations.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_a_file_that_is_truncated_and_filled_to_its_size_before_anything_was_taken_loses_nothing() -> None:
    course = Rotations()
    course.begin()
    course.rotate_by_renaming()
    course.write_a_line_in_two_parts()
    course.rotate_by_copying_and_truncating()
    course.write_a_line_in_two_parts()
    course.teardown()


def test_a_file_that_is_not_there_yet_is_waited_for(reader: Reader) -> None:
    assert reader.tailer.look(0, ReadLimits()).absent
    append(reader.path, "a\n")
    reader.settle()
    assert reader.stored == ["a"]


def test_what_was_rotated_before_the_first_look_is_not_read_and_what_is_rotated_later_is(
    reader: Reader,
) -> None:
    append(reader.path.with_name("a.log.1"), "old\n")
    reader.look()
    reader.path.with_name("a.log.1").rename(reader.path.with_name("a.log.2"))
    append(reader.path.with_name("a.log.1"), "1\n")
    append(reader.path, "2\n")
    reader.restart()
    reader.settle()
    assert reader.stored == ["1", "2"]


def test_the_end_is_where_the_file_ends_at_the_first_look(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    append(path, "old\npart")
    reader = Reader(path, from_end=True)
    reader.settle()
    append(path, "ly old\nnew\n")
    reader.settle()
    assert reader.stored == ["partly old", "new"]


def test_a_file_that_comes_later_is_read_whole_even_from_the_end(tmp_path: Path) -> None:
    reader = Reader(tmp_path / "a.log", from_end=True)
    reader.settle()
    append(reader.path, "first\n")
    reader.settle()
    assert reader.stored == ["first"]


def test_a_renamed_file_is_read_while_its_writer_is_still_in_it(reader: Reader) -> None:
    with reader.path.open("a", buffering=1) as writer:
        writer.write("a\n")
        reader.settle()
        reader.path.rename(reader.path.with_name("a.log.1"))
        reader.path.touch()
        writer.write("b\n")
        reader.settle()
        writer.write("c\n")
    append(reader.path, "d\n")
    reader.settle()
    assert reader.stored == ["a", "b", "c", "d"]


def test_a_last_line_without_newline_counts_once_its_file_is_left(reader: Reader) -> None:
    append(reader.path, "a\nb")
    reader.settle()
    assert reader.stored == ["a"]
    reader.path.rename(reader.path.with_name("a.log.1"))
    append(reader.path, "c\n")
    reader.settle()
    assert reader.stored == ["a", "b", "c"]


def test_a_file_truncated_and_filled_beyond_the_old_size_is_noticed(reader: Reader) -> None:
    append(reader.path, "old 1\nold 2\n")
    reader.settle()
    reader.path.write_text("new 1\nnew 2\nnew 3\n")
    reader.settle()
    assert reader.stored == ["old 1", "old 2", "new 1", "new 2", "new 3"]
    assert "up to byte 12" in reader.lost[0]


def test_a_truncation_between_reading_and_storing_does_not_shift_the_next_read(reader: Reader) -> None:
    append(reader.path, "old 1\n")
    look = reader.tailer.look(0, ReadLimits())
    while look.piece is None:
        look = reader.tailer.look(0, ReadLimits())
    reader.path.write_text("new 1\nnew 2\n")
    reader.tailer.take(look.piece)
    reader.settle()
    assert reader.stored == ["new 1", "new 2"]


def test_a_file_truncated_before_its_first_read_is_read_from_its_copy(reader: Reader) -> None:
    append(reader.path, "a\n")
    reader.settle()
    reader.path.rename(reader.path.with_name("a.log.2"))
    reader.settle()
    append(reader.path, "a longer line\n")
    while not reader.look():
        reader.now += QUIET
    shutil.copyfile(reader.path, reader.path.with_name("a.log.1"))
    os.truncate(reader.path, 0)
    append(reader.path, "c\n")
    reader.settle()
    assert reader.stored == ["a", "a longer line", "c"]


def test_a_copy_that_a_person_made_is_not_read(reader: Reader) -> None:
    append(reader.path, "a\n")
    reader.settle()
    shutil.copyfile(reader.path, reader.path.with_name("a.log.bak"))
    reader.path.rename(reader.path.with_name("a.log.1"))
    append(reader.path, "b\n")
    reader.settle()
    reader.restart()
    reader.settle()
    assert reader.stored == ["a", "b"]


def test_what_cannot_be_found_again_is_said_and_the_rest_goes_on(reader: Reader) -> None:
    append(reader.path, "a\n")
    reader.settle()
    reader.tailer.close()
    append(reader.path, "never read\n")
    reader.path.rename(reader.path.with_name("elsewhere.gz"))
    reader.path.with_name("elsewhere.gz").unlink()
    append(reader.path, "b\n")
    reader.restart()
    reader.settle()
    assert reader.stored == ["a", "b"]
    assert "are lost" in reader.lost[0]
    assert len(reader.lost) == 1


def test_a_file_restored_under_another_inode_goes_on_where_it_was(reader: Reader) -> None:
    append(reader.path, "a\nb\n")
    reader.settle()
    reader.tailer.close()
    shutil.copyfile(reader.path, reader.path.with_name("restored"))
    reader.path.with_name("restored").rename(reader.path)
    append(reader.path, "c\n")
    reader.restart()
    reader.settle()
    assert reader.stored == ["a", "b", "c"]


def test_a_line_beyond_the_limit_is_named_once_and_passed_over(reader: Reader) -> None:
    append(reader.path, "a\n" + "x" * (3 * contract.MAX_BATCH_BYTES) + "\nb\n")
    reader.settle()
    assert reader.stored == ["a", "b"]
    assert [look.too_long for look in reader.looks if look.too_long] == [f"{reader.path}:2"]


def test_what_is_no_file_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="not a regular file"):
        Tailer(str(tmp_path)).look(0, ReadLimits())
