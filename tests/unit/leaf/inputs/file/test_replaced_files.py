"""Files that are deleted, trimmed or cut off, and what is told of their lines."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.leaf.inputs.file.reader import Reader, append, readers

HEADER = "# a header\n" * 100
"""More than the kilobyte by which files are known."""


@pytest.fixture
def reader() -> Iterator[Callable[..., Reader]]:
    with readers() as make:
        yield make


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.log"


def numbered(begin: int, end: int) -> list[str]:
    return [f"line {number} of this plant" for number in range(begin, end)]


def text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def test_a_file_that_is_packed_right_after_its_rotation_leaves_no_doubt(
    reader: Callable[..., Reader], path: Path
) -> None:
    append(path, text(numbered(0, 5)))
    one = reader(path)
    one.settle()
    append(path, text(numbered(5, 9)))
    path.unlink()
    append(path, text(numbered(9, 12)))
    one.settle()
    assert one.stored == numbered(0, 12)
    assert not one.doubts


def test_a_file_with_the_header_of_a_deleted_one_is_read_whole(
    reader: Callable[..., Reader], path: Path
) -> None:
    append(path, HEADER + text(numbered(0, 5)))
    one = reader(path)
    one.settle()
    append(path, text(numbered(5, 9)))
    path.unlink()
    append(path, HEADER + text(numbered(9, 12)))
    one.settle()
    assert [line for line in one.stored if line.startswith("line")] == numbered(0, 12)
    assert not one.lost


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("is_down", [False, True])
def test_lines_that_are_left_of_a_trimmed_file_may_be_twice(
    reader: Callable[..., Reader], path: Path, in_place: bool, is_down: bool
) -> None:
    append(path, text(numbered(0, 90)))
    one = reader(path)
    one.settle()
    if is_down:
        one.restart()
    if in_place:
        path.write_text(text(numbered(50, 90)))
    else:
        append(path.with_name("new"), text(numbered(50, 90)))
        path.with_name("new").replace(path)
    one.settle()
    assert one.stored == numbered(0, 90) + numbered(50, 90)
    assert one.twice


def test_unread_lines_that_are_left_of_a_trimmed_file_may_be_twice(
    reader: Callable[..., Reader], path: Path
) -> None:
    append(path, text(numbered(0, 5)))
    one = reader(path)
    one.settle()
    append(path, text(numbered(5, 90)))
    append(path.with_name("new"), text(numbered(50, 90)))
    path.with_name("new").replace(path)
    one.settle()
    assert one.stored == numbered(0, 90) + numbered(50, 90)
    assert one.twice


def test_a_line_whose_newline_is_taken_and_given_back_may_be_twice(
    reader: Callable[..., Reader], path: Path
) -> None:
    append(path, text(numbered(0, 90)))
    one = reader(path)
    one.settle()
    os.truncate(path, path.stat().st_size - 1)
    one.settle()
    append(path, "\n")
    one.settle()
    assert one.stored == numbered(0, 90) + numbered(89, 90)
    assert one.twice


def test_lines_after_the_copy_that_was_restored_may_lack(reader: Callable[..., Reader], path: Path) -> None:
    append(path, text(numbered(0, 90)))
    one = reader(path)
    one.settle()
    one.following.close()
    path.write_text(text([*numbered(0, 80), *numbered(100, 150)]))  # lines 90 to 99 were in the file between
    one.restart()
    one.settle()
    assert set(numbered(100, 150)) <= set(one.stored)
    assert one.twice
    assert one.lost


def test_a_file_that_waits_for_an_older_one_is_stored_though_it_is_overwritten(
    reader: Callable[..., Reader], path: Path
) -> None:
    append(path, text(numbered(0, 5)))
    one = reader(path)
    one.settle()
    slot = path.with_name("a.log.1")
    for begin in range(5, 30, 3):
        append(path, text(numbered(begin, begin + 3)))
        one.now += 1
        one.look()
        path.replace(slot)
    one.settle()
    assert one.stored == numbered(0, 32)
    assert not one.doubts


def test_files_that_svlogd_rotated_while_the_agent_was_down_are_read(
    reader: Callable[..., Reader], path: Path
) -> None:
    current = path.with_name("current")
    append(path, "other\n")
    append(current, text(numbered(0, 5)))
    one = reader(path, current)
    one.settle()
    one.following.close()
    for begin in range(5, 20, 5):
        append(current, text(numbered(begin, begin + 5)))
        path.rename(path.with_name(f"a.log.{begin}"))
        append(path, f"other {begin}\n")
        current.rename(path.with_name(f"@40000000692a00{begin:02}1e2d3f4a.s"))
    append(current, text(numbered(20, 22)))
    one.restart()
    one.settle()
    assert [line for line in one.stored if line.startswith("line")] == numbered(0, 22)
    assert not one.doubts


@pytest.mark.parametrize("header", ["", "# a header\n"])
def test_a_copy_is_read_whole_where_its_file_was_emptied_unread_and_filled_again(
    reader: Callable[..., Reader], path: Path, header: str
) -> None:
    copy = path.with_name("a.log.1")
    one = reader(path)
    one.settle()
    append(path, header + text(numbered(0, 5)))
    one.look(take=False)
    shutil.copyfile(path, copy)
    one.now += 1
    one.look(take=False)  # the copy is seen
    path.write_text(header + text(numbered(5, 12)))
    one.now += 0.5
    one.look()
    if header:
        one.restart()  # no more than the header tells that it is not the same file
    one.settle()
    assert sorted(line for line in one.stored if line.startswith("line")) == sorted(numbered(0, 12))
    assert bool(one.twice) == bool(header)


def test_a_file_that_is_moved_to_another_disk_before_its_turn_is_stored_once(
    reader: Callable[..., Reader], path: Path
) -> None:
    append(path, text(numbered(0, 5)))
    one = reader(path)
    one.settle()
    append(path, text(numbered(5, 7)))
    path.rename(path.with_name("a.log.2"))
    append(path, text(numbered(7, 9)))
    one.now += 1
    one.look()  # the new file waits for the older one, and is open
    shutil.copyfile(path, path.with_name("a.log.1"))
    path.unlink()
    one.now += 1
    one.settle()
    append(path, text(numbered(9, 12)))
    one.settle()
    assert one.stored == numbered(0, 12)
    assert not one.doubts


def test_files_that_were_rotated_between_two_looks_are_read_in_the_order_of_their_age(
    reader: Callable[..., Reader], path: Path
) -> None:
    def rotated(begin: int, end: int) -> None:
        for number in (2, 1):
            older = path.with_name(f"a.log.{number}")
            if older.exists():
                older.rename(path.with_name(f"a.log.{number + 1}"))
        path.rename(path.with_name("a.log.1"))
        append(path, text(numbered(begin, end)))

    append(path, text(numbered(0, 5)))
    one = reader(path)
    one.settle()
    append(path, text(numbered(5, 7)))
    rotated(7, 9)
    rotated(9, 14)
    one.look(take=False)  # nothing is stored, so the first file is still read
    rotated(14, 20)
    one.settle()
    assert one.stored == numbered(0, 20)
    assert not one.doubts


def test_a_short_file_that_was_rotated_after_a_longer_one_was_deleted_leaves_no_doubt(
    reader: Callable[..., Reader], path: Path
) -> None:
    append(path, text(numbered(0, 9)))
    one = reader(path)
    one.settle()
    path.unlink()  # it is open, so no other file gets its inode
    append(path.with_name("a.log.1"), text(numbered(20, 21)))
    one.settle()
    append(path, text(numbered(21, 25)))
    one.settle()
    assert one.stored == numbered(0, 9) + numbered(20, 25)
    assert not one.doubts


@pytest.mark.parametrize("descriptors", [1, 100])
def test_lines_of_a_dated_file_that_is_deleted_unread_may_lack_though_no_file_takes_its_path(
    reader: Callable[..., Reader], path: Path, descriptors: int
) -> None:
    """The agent is down, or holds no more files open."""
    append(path, text(numbered(0, 5)))
    one = reader(path.with_name("*.log"))
    one.descriptors = descriptors
    append(path.with_name("0.log"), "other\n")
    one.restart()
    one.settle()
    if descriptors > 1:
        one.following.close()
    append(path, text(numbered(5, 9)))
    (path.parent / "elsewhere").mkdir()
    away = path.rename(path.parent / "elsewhere" / "a.log")
    append(path.with_name("b.log"), text(numbered(9, 12)))
    if descriptors > 1:
        one.restart()
    one.settle()
    assert len(one.lost) == 1
    away.rename(path)
    one.settle()
    assert sorted(one.stored) == sorted(["other", *numbered(0, 12)])


def test_a_copy_is_named_where_its_file_comes_back_and_no_catalogue_tells_of_the_copy(
    reader: Callable[..., Reader], path: Path
) -> None:
    append(path, text(numbered(0, 2)))
    one = reader(path)
    one.settle()
    one.keeps = False
    away = path.with_name("away")
    path.rename(away)
    shutil.copyfile(away, path)
    one.settle()
    away.rename(path.with_name("a.log.1"))
    one.restart()
    one.settle()
    assert one.stored == numbered(0, 2) * 2
    assert one.twice


@pytest.mark.parametrize("is_rotated", [False, True])
def test_a_copy_that_has_the_inode_of_an_unread_file_is_told_by_its_content(
    reader: Callable[..., Reader], path: Path, is_rotated: bool
) -> None:
    append(path, text(numbered(0, 9)))
    one = reader(path.with_name("*.log"))
    one.settle()
    unread = path.with_name("unread.log")
    append(unread, "unread\n")
    one.now += 1
    one.look(take=False)
    one.following.close()
    shutil.copyfile(path, unread)  # as if it was deleted, and the copy got its inode
    unread.replace(path.with_name("a.log.1") if is_rotated else path)
    one.restart()
    one.settle()
    append(path, text(numbered(9, 12)))
    one.settle()
    assert one.stored == numbered(0, 12)
    (lost,) = one.lost
    assert lost.startswith(
        f"a file of {path.with_name('*.log')} no longer holds what was read of it up to byte 0"
    )


def test_a_short_copy_under_another_followed_name_is_named(reader: Callable[..., Reader], path: Path) -> None:
    append(path, text(numbered(0, 2)))
    one = reader(path.with_name("*.log"))
    one.settle()
    shutil.copyfile(path, path.with_name("copy.log"))
    one.settle()
    assert one.stored == numbered(0, 2) * 2
    assert one.twice


def test_equal_lines_of_two_new_files_of_one_path_are_all_stored_and_named(
    reader: Callable[..., Reader], path: Path
) -> None:
    one = reader(path)
    one.settle()
    append(path.with_name("a.log.1"), "up\n")
    append(path, "up\nup\n")
    one.settle()
    assert one.stored == ["up"] * 3
    assert one.twice


def test_a_file_waits_until_the_older_one_of_its_path_is_read(
    reader: Callable[..., Reader], path: Path
) -> None:
    append(path, text(numbered(0, 1)))
    one = reader(path)
    one.settle()
    append(path, text(numbered(1, 20_000)))
    path.rename(path.with_name("a.log.1"))
    append(path, text(numbered(20_000, 20_003)))
    one.now += 1
    one.settle()
    assert one.stored == numbered(0, 20_003)


def test_what_a_cut_file_held_is_forgotten_with_the_next_position_that_is_stored(
    reader: Callable[..., Reader], path: Path
) -> None:
    line = "y" * 2000
    append(path, text([line] * 3))
    one = reader(path.with_name("*.log"))
    one.settle()
    append(path.with_name("other.log"), "other\n")
    one.settle()  # the catalogue that is kept tells how far the first one was read
    one.keeps = False
    os.truncate(path, 2 * 2001)
    one.settle()
    append(path.with_name("other.log"), "other\n")
    one.settle()
    one.following.close()
    append(path, text([line] * 2))  # the file holds again all that was read before
    one.restart()
    one.settle()
    assert one.stored == [line] * 3 + ["other"] * 2 + [line] * 2
    assert len(one.lost) == 1


@pytest.mark.parametrize("pattern", ["a.log", "*.log"])
@pytest.mark.parametrize("name", ["put aside.txt", ".nfs0000000000773afb5c231189"])
def test_the_rest_of_a_file_is_read_under_any_name_in_its_folder(
    reader: Callable[..., Reader], path: Path, pattern: str, name: str
) -> None:
    append(path, text(numbered(0, 5)))
    one = reader(path.with_name(pattern))
    one.settle()
    one.following.close()
    append(path, text(numbered(5, 7)))
    path.rename(path.with_name(name))
    append(path, text(numbered(7, 9)))
    one.restart()
    one.settle()
    assert one.stored == numbered(0, 9)
    assert not one.doubts


def test_the_rest_of_a_copy_is_read_after_a_kill_though_no_catalogue_tells_that_it_was_begun(
    reader: Callable[..., Reader], path: Path
) -> None:
    one = reader(path)
    append(path, text(numbered(0, 40_000)))
    one.look(take=False)
    shutil.copyfile(path, path.with_name("a.log.1"))
    one.now += 1
    one.look(take=False)  # the copy is seen, and the catalogue kept
    one.keeps = False
    path.write_text("new\n")
    one.now += 1
    one.look()
    one.look()
    assert 0 < len(one.stored) < 40_000
    one.restart()
    one.settle()
    assert sorted(one.stored) == sorted([*numbered(0, 40_000), "new"])
    assert not one.doubts


@pytest.mark.parametrize("pattern", ["a.log", "*.log"])
@pytest.mark.parametrize("is_read", [False, True])
def test_another_file_that_has_the_inode_of_a_deleted_one_is_not_read_under_a_name_that_is_not_followed(
    reader: Callable[..., Reader], path: Path, pattern: str, is_read: bool
) -> None:
    append(path, text(numbered(0, 5)))
    one = reader(path.with_name(pattern))
    one.look(take=is_read)
    one.following.close()
    path.write_text("secret\n")
    path.rename(path.with_name("notes.txt"))  # as if it was created with that inode
    append(path, text(numbered(5, 9)))
    one.restart()
    one.settle()
    assert one.stored == numbered(0 if is_read else 5, 9)
    assert len(one.lost) == 1
