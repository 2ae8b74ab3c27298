"""One file through rotations, looks, crashes and restarts: its lines are stored in their order."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import cast

import pytest

from agent import contract
from agent.leaf.inputs.file.tail_group import QUIET
from tests.unit.leaf.inputs.file.reader import Reader, append


class OneFile(Reader):
    @property
    def path(self) -> Path:
        return Path(self.paths[0])


@contextmanager
def acting_after_the_listing(act: Callable[[], None]) -> Iterator[None]:
    """The next listing of a folder is out of date when it is used."""
    really = os.scandir

    def once(path: str) -> os._ScandirIterator[str]:
        os.scandir = really
        entries = list(really(path))
        act()
        return cast("os._ScandirIterator[str]", nullcontext(entries))

    os.scandir = once  # type: ignore[assignment]
    yield


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[OneFile]:
    one = OneFile(tmp_path / "a.log")
    yield one
    one.following.close()


def test_a_file_that_is_not_there_yet_is_waited_for(reader: OneFile) -> None:
    reader.look()
    assert reader.seen[-1].absent == [str(reader.path)]
    append(reader.path, "a\n")
    reader.settle()
    assert reader.stored == ["a"]


def test_what_was_rotated_before_the_first_look_is_not_read_and_what_is_rotated_later_is(
    reader: OneFile,
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
    reader = OneFile(path, from_end=True)
    reader.settle()
    append(path, "ly old\nnew\n")
    reader.settle()
    assert reader.stored == ["partly old", "new"]


def test_a_file_that_comes_later_is_read_whole_even_from_the_end(tmp_path: Path) -> None:
    reader = OneFile(tmp_path / "a.log", from_end=True)
    reader.settle()
    append(reader.path, "first\n")
    reader.settle()
    assert reader.stored == ["first"]


def test_a_renamed_file_is_read_while_its_writer_is_still_in_it(reader: OneFile) -> None:
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


def test_a_last_line_without_newline_counts_once_its_file_is_left(reader: OneFile) -> None:
    append(reader.path, "a\nb")
    reader.settle()
    assert reader.stored == ["a"]
    reader.path.rename(reader.path.with_name("a.log.1"))
    append(reader.path, "c\n")
    reader.settle()
    assert reader.stored == ["a", "b", "c"]


def test_a_file_truncated_and_filled_beyond_the_old_size_is_noticed(reader: OneFile) -> None:
    append(reader.path, "old 1\nold 2\n")
    reader.settle()
    reader.path.write_text("new 1\nnew 2\nnew 3\n")
    reader.settle()
    assert reader.stored == ["old 1", "old 2", "new 1", "new 2", "new 3"]
    assert "up to byte 12" in reader.lost[0]


def test_a_truncation_between_reading_and_storing_does_not_shift_the_next_read(reader: OneFile) -> None:
    append(reader.path, "old 1\n")
    _, position, lines = reader.gather()
    assert lines == ["old 1"]
    reader.path.write_text("new 1\nnew 2\n")
    reader.stored, reader.position = lines, position
    reader.following.take()
    reader.settle()
    assert reader.stored == ["old 1", "new 1", "new 2"]


def test_a_file_truncated_before_its_first_read_is_read_from_its_copy(reader: OneFile) -> None:
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


def test_a_copy_that_a_person_made_is_not_read(reader: OneFile) -> None:
    append(reader.path, "a\n")
    reader.settle()
    shutil.copyfile(reader.path, reader.path.with_name("a.log.bak"))
    reader.path.rename(reader.path.with_name("a.log.1"))
    append(reader.path, "b\n")
    reader.settle()
    reader.restart()
    reader.settle()
    assert reader.stored == ["a", "b"]


def test_a_file_that_is_rotated_while_it_is_listed_is_not_taken_for_gone(reader: OneFile) -> None:
    path = reader.path
    reader.paths = [str(path.with_name("*.log"))]
    reader.restart()
    append(path, "1\n")
    reader.settle()
    reader.restart()

    def rotate() -> None:
        path.rename(path.with_name("a.log.1"))
        append(path, "1\n")

    with acting_after_the_listing(rotate):
        reader.look()
    reader.settle()
    assert reader.stored == ["1", "1"]


def test_what_cannot_be_found_again_is_said_and_the_rest_goes_on(reader: OneFile) -> None:
    append(reader.path, "a\n")
    reader.settle()
    reader.following.close()
    append(reader.path, "never read\n")
    reader.path.rename(reader.path.with_name("elsewhere.gz"))
    reader.path.with_name("elsewhere.gz").unlink()
    append(reader.path, "b\n")
    reader.restart()
    reader.settle()
    assert reader.stored == ["a", "b"]
    assert "are lost" in reader.lost[0]
    assert len(reader.lost) == 1


def test_a_file_restored_under_another_inode_goes_on_where_it_was(reader: OneFile) -> None:
    append(reader.path, "a\nb\n")
    reader.settle()
    reader.following.close()
    shutil.copyfile(reader.path, reader.path.with_name("restored"))
    reader.path.with_name("restored").rename(reader.path)
    append(reader.path, "c\n")
    reader.restart()
    reader.settle()
    assert reader.stored == ["a", "b", "c"]


def test_a_line_beyond_the_limit_is_named_once_and_passed_over(reader: OneFile) -> None:
    append(reader.path, "a\n" + "x" * (3 * contract.MAX_BATCH_BYTES) + "\nb\n")
    reader.settle()
    assert reader.stored == ["a", "b"]
    assert [at for seen in reader.seen for at in seen.too_long] == [f"{reader.path}:2"]


def test_what_is_no_file_is_refused_in_words(reader: OneFile) -> None:
    reader.path.mkdir()
    reader.look()
    assert reader.seen[-1].problems == [f"{reader.path}: not a regular file"]
