"""Following many real files at once: each line of each is stored once, whatever they are called by then."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent import contract
from agent.leaf.inputs.file import catalogue
from agent.leaf.inputs.file.catalogue import WATCH
from agent.leaf.inputs.file.positions import MAX_FILES, parse_position
from agent.leaf.inputs.file.tail_group import QUIET, REST, SCAN
from tests.unit.leaf.inputs.file.reader import Reader, append, readers
from tests.unit.leaf.inputs.file.test_generations import unlistable


@pytest.fixture
def reader_of() -> Iterator[Callable[..., Reader]]:
    with readers() as make:
        yield make


def test_a_file_that_was_emptied_before_any_of_it_was_stored_is_read_after_its_next_rotation(
    tmp_path: Path, reader_of: Callable[..., Reader]
) -> None:
    reader = reader_of(tmp_path / "*.log")
    append(tmp_path / "b.log", "removed by its writer\n")
    reader.look(take=False)
    os.truncate(tmp_path / "b.log", 0)
    append(tmp_path / "a.log", "1\n")
    reader.settle()
    append(tmp_path / "b.log", "2\n")
    (tmp_path / "b.log").rename(tmp_path / "b.log.1")
    append(tmp_path / "b.log", "3\n")
    reader.restart()
    reader.settle()
    assert reader.stored == ["1", "2", "3"]


def test_a_file_that_was_deleted_before_its_first_line_was_whole_is_read_after_its_next_rotation(
    tmp_path: Path, reader_of: Callable[..., Reader]
) -> None:
    reader = reader_of(tmp_path / "*.log")
    append(tmp_path / "b.log", "removed by its wri")
    os.utime(tmp_path / "b.log", (1_700_000_000, 1_700_000_000))
    reader.settle()
    (tmp_path / "b.log").unlink()
    reader.settle()
    reader.now += REST
    reader.settle()
    append(tmp_path / "a.log", "1\n")
    reader.settle()
    append(tmp_path / "b.log", "2\n")
    (tmp_path / "b.log").rename(tmp_path / "b.log.1")
    append(tmp_path / "b.log", "3\n")
    reader.restart()
    reader.settle()
    assert reader.stored == ["removed by its wri", "1", "2", "3"]


def test_a_file_that_is_renamed_before_any_of_it_is_stored_is_read_once_though_its_path_had_another(
    tmp_path: Path, reader_of: Callable[..., Reader]
) -> None:
    reader = reader_of(tmp_path / "*.log")
    append(tmp_path / "a.log", "1\n")
    reader.settle()
    (tmp_path / "a.log").rename(tmp_path / "a.log.1")
    append(tmp_path / "a.log", "2\n")
    while not any(piece.lines == b"2\n" for piece in reader.seen[-1].pieces):
        reader.now += max(QUIET, SCAN)
        reader.look(take=False)
    (tmp_path / "a.log").rename(tmp_path / "b.log")
    reader.now += SCAN
    reader.settle()
    append(tmp_path / "a.log", "3\n")
    reader.settle()
    assert reader.stored == ["1", "2", "3"]


def test_what_was_rotated_after_a_file_was_deleted_is_read(
    tmp_path: Path, reader_of: Callable[..., Reader]
) -> None:
    reader = reader_of(tmp_path / "*.log")
    append(tmp_path / "a.log", "1\n")
    os.utime(tmp_path / "a.log", (1_700_000_000, 1_700_000_000))
    reader.settle()
    (tmp_path / "a.log").unlink()
    append(tmp_path / "a.log.1", "2\n")
    reader.restart()
    reader.settle()
    append(tmp_path / "a.log", "3\n")
    reader.settle()
    assert reader.stored == ["1", "2", "3"]
    assert len(reader.lost) == 1


def test_files_take_turns_and_share_a_batch(tmp_path: Path, reader_of: Callable[..., Reader]) -> None:
    reader = reader_of(tmp_path / "*.log")
    long = "x" * 1000 + "\n"
    append(tmp_path / "a.log", long * 2000)
    append(tmp_path / "b.log", long * 2000)
    for name in "cde":
        append(tmp_path / f"{name}.log", f"{name}\n")
    while not {"c", "d", "e"} <= set(reader.stored):
        reader.look()
    assert len(reader.stored) < 1000, "the small ones have not waited for the large ones"
    together = max(len(gathered.pieces) for gathered in reader.seen)
    assert together > 2
    sizes = [sum(len(piece.lines) for piece in gathered.pieces) for gathered in reader.seen]
    assert max(sizes) <= contract.MAX_BATCH_BYTES


def test_a_line_has_room_in_the_next_batch_where_it_had_none_in_this(
    tmp_path: Path, reader_of: Callable[..., Reader]
) -> None:
    reader = reader_of(tmp_path / "*.log")
    for name in "abc":
        append(tmp_path / f"{name}.log", name * 150_000 + "\n")
    reader.settle()
    assert [line[0] for line in reader.stored] == ["a", "b", "c"]
    assert max(len(gathered.pieces) for gathered in reader.seen) == 1


def test_a_file_that_appears_is_read_whole_even_from_the_end(
    tmp_path: Path, reader_of: Callable[..., Reader]
) -> None:
    append(tmp_path / "a.log", "old\n")
    reader = reader_of(tmp_path / "*.log", from_end=True)
    reader.settle()
    append(tmp_path / "a.log", "new\n")
    append(tmp_path / "b.log", "first\n")
    reader.settle()
    reader.restart()
    append(tmp_path / "c.log", "while away\n")
    reader.settle()
    assert sorted(reader.stored) == ["first", "new", "while away"]


def test_a_folder_that_vanishes_and_comes_back_is_gone_on_with(
    tmp_path: Path, reader_of: Callable[..., Reader]
) -> None:
    folder, away = tmp_path / "disk", tmp_path / "away"
    folder.mkdir()
    reader = reader_of(folder / "*.log", folder / "named.txt")
    for name in ("a.log", "b.log", "named.txt"):
        append(folder / name, f"{name} 1\n")
    reader.settle()
    folder.rename(away)
    reader.settle()
    reader.restart()
    reader.settle()
    for name in ("a.log", "b.log", "named.txt"):
        append(away / name, f"{name} 2\n")
    away.rename(folder)
    reader.settle()
    assert sorted(reader.stored) == sorted(
        f"{name} {n}" for name in ("a.log", "b.log", "named.txt") for n in (1, 2)
    )
    assert reader.lost == []


def test_what_cannot_be_read_holds_nothing_else_up(
    tmp_path: Path, reader_of: Callable[..., Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    append(tmp_path / "a.log", "a\n")
    append(tmp_path / "b.log", "b\n")
    really = os.open

    def refusing(path: str, *rest: int) -> int:
        if str(path).endswith("a.log"):
            raise PermissionError(13, "Permission denied", path)
        return really(path, *rest)

    reader = reader_of(tmp_path / "*.log")
    with monkeypatch.context() as patch:
        patch.setattr("os.open", refusing)  # root may read everything
        reader.settle()
    assert reader.stored == ["b"]
    assert reader.seen[-1].problems == [f"{tmp_path}/a.log: Permission denied"]
    reader.settle()
    assert reader.stored == ["b", "a"]
    assert reader.seen[-1].problems == []


def test_a_last_line_that_is_too_long_is_told_once_where_its_file_was_left(
    tmp_path: Path, reader_of: Callable[..., Reader]
) -> None:
    path = tmp_path / "a.log"
    append(path, "1\n" + "x" * (contract.MAX_BATCH_BYTES + 1) + "\n")
    reader = reader_of(path)
    reader.settle()
    path.rename(tmp_path / "a.log.1")
    append(path, "2\n")
    reader.settle()
    reader.settle()
    assert reader.stored == ["1", "2"]
    assert sum(len(seen.too_long) for seen in reader.seen) == 1


def test_a_folder_that_cannot_be_listed_is_told(
    tmp_path: Path, reader_of: Callable[..., Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    reader = reader_of(tmp_path / "*.log")
    monkeypatch.setattr("os.scandir", refusing)
    reader.look()
    assert reader.seen[-1].problems == [f"{tmp_path}: Permission denied"]


def test_a_rotation_in_a_folder_that_cannot_be_listed_is_read_and_named_by_no_doubt(
    tmp_path: Path, reader_of: Callable[..., Reader]
) -> None:
    path = tmp_path / "a.log"
    append(path, "1\n")
    reader = reader_of(path)
    reader.descriptors = 1
    reader.restart()
    reader.settle()
    with unlistable(tmp_path):
        reader.settle()
        append(path, "2\n")
        path.rename(tmp_path / "a.log.1")
        append(path, "3\n")
        reader.now += 3600
        reader.settle()
        assert reader.seen[-1].problems == [f"{tmp_path}: Permission denied"]
    reader.settle()
    assert sorted(reader.stored) == ["1", "2", "3"]
    assert reader.doubts == []


def test_files_beyond_the_limit_are_told_and_one_that_is_gone_makes_room(
    tmp_path: Path, reader_of: Callable[..., Reader]
) -> None:
    for number in range(MAX_FILES + 1):
        append(tmp_path / f"{number:03d}x.log", f"{number}\n")
    reader = reader_of(tmp_path / "*.log")
    reader.settle()
    assert sorted(map(int, reader.stored)) == list(range(MAX_FILES))
    (problem,) = reader.seen[-1].problems
    assert f"{MAX_FILES:03d}x.log is not read: {MAX_FILES} files are followed already" in problem
    (tmp_path / "007x.log").unlink()
    reader.settle()
    assert sorted(map(int, reader.stored)) == list(range(MAX_FILES + 1))
    assert reader.seen[-1].problems == []
    assert reader.position is not None
    assert len(parse_position(reader.position).generations()) <= MAX_FILES


def test_a_full_catalogue_forgets_what_is_gone_and_says_so_once(
    tmp_path: Path, reader_of: Callable[..., Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "MAX_KNOWN", 2)
    reader = reader_of(tmp_path / "*.log")
    for name in "abcd":
        append(tmp_path / f"{name}.log", f"{name}\n")
        reader.settle()
        (tmp_path / f"{name}.log").unlink()
        reader.settle()
        reader.now += REST
        reader.settle()
    assert reader.stored == ["a", "b", "c", "d"]
    (warning,) = [text for gathered in reader.seen for text in gathered.warnings]
    assert warning.startswith("2 files are known")


def test_a_second_name_of_a_file_and_what_was_packed_are_not_followed(
    tmp_path: Path, reader_of: Callable[..., Reader]
) -> None:
    append(tmp_path / "plant-20251121.log", "once\n")
    (tmp_path / "current.log").symlink_to("plant-20251121.log")
    (tmp_path / "again.log").hardlink_to(tmp_path / "plant-20251121.log")
    append(tmp_path / "plant-20251120.log.gz", "packed\n")
    (tmp_path / "folder.log").mkdir()
    append(tmp_path / ".hidden.log", "hidden\n")
    reader = reader_of(tmp_path / "*.log*")
    reader.settle()
    assert reader.stored == ["once"]


def test_what_looks_rotated_is_left_out_and_told_when_it_is_written_to_or_read_when_it_is_named(
    tmp_path: Path, reader_of: Callable[..., Reader]
) -> None:
    append(tmp_path / "sensor.log", "1\n")
    append(tmp_path / "sensor-2.log", "2\n")
    reader = reader_of(tmp_path / "*.log")
    reader.settle()
    reader.now += WATCH
    append(tmp_path / "sensor-2.log", "3\n")
    os.utime(tmp_path / "sensor-2.log", (2_000_000_000, 2_000_000_000))
    reader.settle()
    assert reader.stored == ["1"]
    left_out, warning = [text for gathered in reader.seen for text in gathered.warnings]
    assert left_out.startswith(f"{tmp_path}/sensor-2.log had been rotated before the first look")
    assert warning.startswith(f"{tmp_path}/sensor-2.log is taken for a rotated file of {tmp_path}/sensor.log")
    reader.paths = [str(tmp_path / "*.log"), str(tmp_path / "sensor-2.log")]
    reader.restart()
    reader.settle()
    assert reader.stored == ["1", "2", "3"]
    assert reader.seen[-1].warnings == []


def test_no_more_files_are_open_than_may_be_and_each_is_read(
    tmp_path: Path, reader_of: Callable[..., Reader]
) -> None:
    reader = reader_of(tmp_path / "*.log")
    reader.descriptors = 3
    reader.restart()
    most = 0
    for round_ in range(2):
        for number in range(20):
            append(tmp_path / f"{number}x.log", f"{number} {round_}\n")
        for _ in range(20):
            reader.look()
            held = [os.readlink(f"/proc/self/fd/{fd}") for fd in open_descriptors()]  # noqa: PTH115
            most = max(most, sum(name.startswith(str(tmp_path)) for name in held))
    assert most <= 3
    assert sorted(reader.stored) == sorted(
        f"{number} {round_}" for number in range(20) for round_ in range(2)
    )


def open_descriptors() -> list[str]:
    """Those that are open still when they are asked for."""
    return [fd for fd in os.listdir("/proc/self/fd") if Path(f"/proc/self/fd/{fd}").is_symlink()]  # noqa: PTH208


def test_a_deleted_file_is_not_held_open(tmp_path: Path, reader_of: Callable[..., Reader]) -> None:
    append(tmp_path / "a.log", "a\n")
    reader = reader_of(tmp_path / "*.log")
    reader.settle()
    (tmp_path / "a.log").unlink()

    def held() -> bool:
        found = []
        for one in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                found.append(str(one.readlink()))
        return any(one.startswith(str(tmp_path / "a.log")) for one in found)

    assert held()
    reader.settle()
    reader.now += REST
    reader.settle()
    assert not held()
    append(tmp_path / "a.log", "b\n")
    reader.settle()
    assert reader.stored == ["a", "b"]
    assert reader.lost == []


def test_a_link_that_points_elsewhere_twice_while_nobody_looks_skips_no_file(
    tmp_path: Path, reader_of: Callable[..., Reader]
) -> None:
    link = tmp_path / "current.log"
    append(tmp_path / "d26.log", "before the first look\n")
    append(tmp_path / "d27.log", "1\n")
    link.symlink_to("d27.log")
    reader = reader_of(link)
    reader.settle()
    append(tmp_path / "d27.log", "2\n")
    append(tmp_path / "d28.log", "3\n")
    append(tmp_path / "d29.log", "4\n")
    link.unlink()
    link.symlink_to("d29.log")
    reader.restart()
    reader.settle()
    assert sorted(reader.stored) == ["1", "2", "3", "4"]


@pytest.mark.parametrize("lost", [False, True])
def test_what_was_rotated_after_an_older_catalogue_was_kept_is_read_again_and_named(
    tmp_path: Path, reader_of: Callable[..., Reader], lost: bool
) -> None:
    path = tmp_path / "a.log"
    append(path, "1\n")
    reader = reader_of(path)
    reader.settle()
    older = reader.kept
    for number in (2, 3):
        path.rename(tmp_path / f"a.log.{5 - number}")
        append(path, f"{number}\n")
        reader.settle()
    (tmp_path / "a.log.3").unlink()
    reader.kept = None if lost else older
    reader.restart()
    reader.settle()
    assert reader.stored == ["1", "2", "3", "2"]
    *_, doubt = reader.twice
    assert doubt.startswith(f"{tmp_path}/a.log.2 is new to an older state")


@pytest.mark.parametrize("lost", [False, True])
def test_a_file_that_was_read_further_than_the_catalogue_knows_is_named(
    tmp_path: Path, reader_of: Callable[..., Reader], lost: bool
) -> None:
    """`lost`: so is the position, of which only the catalogue tells."""
    path, other = tmp_path / "a.log", tmp_path / "b.log"
    append(path, "1\n")
    reader = reader_of(path, other)
    reader.settle()
    append(other, "2\n")
    reader.settle()
    older = reader.kept
    append(path, "3\n")
    path.rename(tmp_path / "a.log.1")
    append(path, "4\n")
    reader.settle()
    reader.kept = older
    reader.position = None if lost else reader.position
    reader.restart()
    reader.settle()
    assert reader.stored.count("3") == 2
    assert "all files are read from an older state" in reader.twice


def test_a_path_that_appears_after_an_older_state_was_restored_leaves_no_doubt(
    tmp_path: Path, reader_of: Callable[..., Reader]
) -> None:
    append(tmp_path / "a.log", "1\n")
    reader = reader_of(tmp_path / "*.log")
    reader.settle()
    reader.kept = None
    reader.restart()
    reader.settle()
    append(tmp_path / "b.log", "2\n")
    reader.settle()
    assert reader.stored == ["1", "2"]
    assert not reader.doubts


@pytest.mark.parametrize(("size", "restarts"), [(300, False), (3000, True)])
def test_a_shorter_file_with_the_header_of_a_deleted_one_is_no_copy_of_it(
    tmp_path: Path, reader_of: Callable[..., Reader], size: int, restarts: bool
) -> None:
    """The deleted one is open, or a whole kilobyte tells the files apart."""
    header = "# a header\n"
    append(tmp_path / "a.log", header + "a" * size + "\n")
    reader = reader_of(tmp_path / "*.log")
    reader.settle()
    (tmp_path / "a.log").unlink()
    append(tmp_path / "b.log", header + "b" * (size // 2) + "\n")
    if restarts:
        reader.restart()
    reader.settle()
    assert len(reader.stored) == 4
    assert not reader.twice


@pytest.mark.parametrize("descriptors", [1, 100])
def test_the_header_of_a_lost_file_alone_makes_no_copy_of_it(
    tmp_path: Path, reader_of: Callable[..., Reader], descriptors: int
) -> None:
    for name in ("0.log", "a.log"):
        append(tmp_path / name, f"# a header\n{name}\n")
    reader = reader_of(tmp_path / "*.log")
    reader.descriptors = descriptors
    reader.restart()
    reader.settle()
    before = list(reader.twice)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "a.log").rename(tmp_path / "elsewhere" / "a.log")  # so that its inode stays in use
    append(tmp_path / "b.log", "# a header\n")
    reader.settle()
    assert len(reader.stored) == 5
    assert reader.twice == before


def test_a_copy_of_a_part_of_a_file_is_named_where_the_file_is_deleted_meanwhile(
    tmp_path: Path, reader_of: Callable[..., Reader]
) -> None:
    append(tmp_path / "a.log", "1\n2\n3\n")
    reader = reader_of(tmp_path / "*.log")
    reader.settle()
    (tmp_path / "a.log").unlink()
    append(tmp_path / "b.log", "1\n2\n")
    reader.settle()
    assert reader.stored == ["1", "2", "3", "1", "2"]
    assert reader.twice


@pytest.mark.parametrize("first", [1, 30, 300])
def test_a_line_behind_nuls_is_read_wherever_a_read_begins(
    tmp_path: Path, reader_of: Callable[..., Reader], first: int
) -> None:
    path = tmp_path / "a.log"
    text = b"1\n2\ntorn" + b"\0" * 200 + b"3\n4\n\0\0"
    path.write_bytes(text[:first])
    reader = reader_of(path)
    reader.settle()
    path.write_bytes(text)
    reader.settle()
    append(path, "5\n")
    reader.settle()
    assert reader.stored == ["1", "2", "torn", "3", "4", "5"]
    assert sum(count for seen in reader.seen for _, _, count in seen.nuls) == 201
