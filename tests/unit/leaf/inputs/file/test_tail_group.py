"""Following many real files at once: each line of each is stored once, whatever they are called by then."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from agent import contract
from agent.leaf.inputs.file.file_set import FORGET, WATCH
from agent.leaf.inputs.file.positions import MAX_FILES, parse_positions
from agent.leaf.inputs.file.tail_group import SCAN, ReadResult, TailGroup
from agent.leaf.inputs.file.tailer import QUIET, REST

NAMES = st.sampled_from(["a", "b", "c"])


class Reader:
    """What follows the files, its clock, and what a store would hold: lines and positions in one act."""

    def __init__(self, *paths: Path | str, from_end: bool = False) -> None:
        self.paths = [str(path) for path in paths]
        self.now = 0.0
        self.stored: list[str] = []
        self.position: str | None = None
        self.seen: list[ReadResult] = []
        self.begun: tuple[str, list[str]] | None = None
        self._from_end = from_end
        self.following = self._begin()

    def _begin(self) -> TailGroup:
        positions = parse_positions(self.position) if self.position is not None else {}
        until = self.begun[0] if self.begun is not None else None
        return TailGroup(self.paths, positions, from_end=self._from_end, until=until)

    def look(self, *, take: bool = True) -> bool:
        gathered = self.following.gather(self.now)
        self.seen.append(gathered)
        if self.begun is None and (position := self.following.begun()) is not None:
            self.position = position
            self.following.keep()
        if gathered.pieces and take:
            lines = [line for piece in gathered.pieces for line in piece.lines.decode().splitlines()]
            if self.begun is not None:
                assert (gathered.position, lines) == self.begun, "it ends where it ended, with the same lines"
                lines = lines[len(lines) // 2 :]
            self.stored += lines
            self.position = gathered.position
            self.begun = None
            self.following.take()
        return gathered.more

    def die_between_parts(self) -> None:
        """Store the first half of what is read, and begin anew."""
        gathered = self.following.gather(self.now)
        if gathered.pieces and self.begun is None:
            lines = [line for piece in gathered.pieces for line in piece.lines.decode().splitlines()]
            self.stored += lines[: len(lines) // 2]
            self.begun = (gathered.position, lines)
        self.restart()

    def settle(self) -> None:
        """Look until nothing happens for longer than a renamed file is waited for."""
        for _ in range(5):
            while self.look():
                pass
            self.now += max(QUIET, SCAN)

    def restart(self) -> None:
        self.following.close()
        self.following = self._begin()

    @property
    def lost(self) -> list[str]:
        return [text for gathered in self.seen for text in gathered.lost]


@pytest.fixture
def reader_of() -> Iterator[Callable[..., Reader]]:
    readers: list[Reader] = []

    def make(*paths: Path | str, from_end: bool = False) -> Reader:
        readers.append(Reader(*paths, from_end=from_end))
        return readers[-1]

    yield make
    for one in readers:
        one.following.close()


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


class ManyFiles(RuleBasedStateMachine):
    """Files that are written, rotated both ways, renamed, replaced and deleted, and a reader that is
    restarted."""

    pattern = "*.log"

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="petiole-following-"))
        self.reader = Reader(self.folder / self.pattern)
        self.written: list[str] = []
        self.ticks = itertools.count(1_700_000_000_000_000_000, 1_000_000_000)
        self.renamed = itertools.count()
        self.deleted: set[str] = set()

    def stamp(self, path: Path) -> None:
        tick = next(self.ticks)
        os.utime(path, ns=(tick, tick))

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    @initialize(names=st.sets(NAMES, min_size=1), stores=st.booleans())
    def begin(self, names: set[str], stores: bool = True) -> None:
        for name in sorted(names):
            self.write(name, 1)
        if stores:
            self.reader.settle()
        else:
            self.reader.look(take=False)

    @rule(name=NAMES, count=st.integers(1, 3))
    def write(self, name: str, count: int) -> None:
        path = self.path(name)
        is_new = not path.exists()
        for _ in range(count):
            line = f"{name} {len(self.written)}"
            append(path, f"{line}\n")
            self.written.append(line)
        self.stamp(path)
        if is_new and self.reader.position is not None:  # what was rotated before it was seen is not known
            if self.reader.begun is not None:
                self.reader.settle()
            self.reader.now += SCAN
            self.reader.look(take=False)

    @rule(name=NAMES)
    def rotate_by_renaming(self, name: str) -> None:
        if self.path(name).exists():
            self.shift(name)
            self.path(name).rename(self.folder / f"{name}.log.1")

    @rule(name=NAMES)
    def rotate_by_copying_and_truncating(self, name: str) -> None:
        path = self.path(name)
        if path.exists() and path.stat().st_size:
            self.shift(name)
            copy = self.folder / f"{name}.log.1"
            shutil.copyfile(path, copy)
            self.stamp(copy)
            os.truncate(path, 0)
            self.stamp(path)

    @rule(name=NAMES, again=st.booleans(), looks=st.integers(0, 2), scans=st.booleans())
    def rename_to_another_path_that_is_followed(
        self, name: str, again: bool, looks: int, scans: bool
    ) -> None:
        if not self.path(name).exists():
            return
        self.path(name).rename(self.folder / f"renamed-{next(self.renamed)}x.log")
        if again:
            line = f"{name} {len(self.written)}"
            append(self.path(name), f"{line}\n")
            self.written.append(line)
            self.stamp(self.path(name))
        for _ in range(looks):
            self.reader.look()
        if scans:
            self.reader.settle()
        else:
            self.reader.restart()
            self.reader.look()

    @rule(name=NAMES, other=NAMES)
    def rename_over_another(self, name: str, other: str) -> None:
        if name != other and self.path(name).exists():
            self.reader.settle()
            self.path(name).replace(self.path(other))
            self.write(other, 1)
            self.reader.now += SCAN
            self.reader.settle()

    @rule(name=NAMES, rest=st.booleans())
    def delete(self, name: str, rest: bool) -> None:
        self.reader.settle()
        self.path(name).unlink(missing_ok=True)
        self.deleted.add(name)
        if rest:
            self.reader.settle()
            self.reader.now += REST
            self.reader.settle()

    @rule(take=st.booleans())
    def look(self, take: bool) -> None:
        self.reader.look(take=take)

    @rule()
    def die_between_parts(self) -> None:
        self.reader.die_between_parts()

    @rule()
    def time_passes(self) -> None:
        self.reader.now += max(QUIET, SCAN)

    @rule()
    def restart(self) -> None:
        self.reader.restart()

    def shift(self, name: str) -> None:
        for number in range(60, 0, -1):
            old = self.folder / f"{name}.log.{number}"
            if old.exists():
                old.rename(self.folder / f"{name}.log.{number + 1}")

    def teardown(self) -> None:
        # The position in a deleted file is waited for as long as no file is at its path.
        for name in sorted(name for name in self.deleted if not self.path(name).exists()):
            self.write(name, 1)
        for _ in range(20):
            self.reader.settle()
        self.reader.following.close()
        shutil.rmtree(self.folder)
        assert sorted(self.reader.stored) == sorted(self.written)


class RotatedFilesMatchToo(ManyFiles):
    """The same with wildcards that find the rotated files as well."""

    pattern = "*.log*"


TestManyFiles = ManyFiles.TestCase
TestManyFiles.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestRotatedFilesMatchToo = RotatedFilesMatchToo.TestCase
TestRotatedFilesMatchToo.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


def test_a_file_that_is_renamed_between_the_parts_of_a_piece_goes_on_behind_it() -> None:
    course = ManyFiles()
    course.begin({"a"})
    course.write("a", 1)
    course.die_between_parts()
    course.rename_to_another_path_that_is_followed("a", again=True, looks=0, scans=False)
    course.teardown()


def test_a_file_that_is_copied_and_truncated_before_a_piece_of_it_begins_in_the_copy_where_it_began() -> None:
    course = RotatedFilesMatchToo()
    course.begin({"a"})
    course.die_between_parts()
    course.write("a", 1)
    course.rotate_by_copying_and_truncating("a")
    course.look(take=False)
    course.die_between_parts()
    course.delete("a", rest=False)
    course.teardown()


def test_a_file_whose_place_is_in_its_copy_has_no_piece_that_is_read_again() -> None:
    course = RotatedFilesMatchToo()
    course.begin({"a"})
    course.rotate_by_copying_and_truncating("a")
    course.write("a", 1)
    course.rename_to_another_path_that_is_followed("a", again=False, looks=0, scans=False)
    course.die_between_parts()
    course.teardown()


def test_a_file_that_is_copied_and_truncated_before_any_of_it_is_stored_is_read_from_its_copy() -> None:
    course = RotatedFilesMatchToo()
    course.begin({"b"}, stores=False)
    course.rotate_by_copying_and_truncating("b")
    course.write("a", 1)
    course.die_between_parts()
    course.teardown()


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
    assert reader.stored == ["1", "2", "3"]


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


def test_a_piece_that_is_read_again_from_a_copy_is_stored_once_where_its_file_was_renamed() -> None:
    course = ManyFiles()
    course.begin({"a"}, stores=False)
    course.die_between_parts()
    course.look(take=False)
    course.rotate_by_copying_and_truncating("a")
    course.time_passes()
    course.rename_to_another_path_that_is_followed("a", again=False, looks=0, scans=True)
    course.teardown()


def test_what_was_rotated_after_a_file_was_deleted_is_read_once_a_file_is_at_its_path(
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
    assert reader.stored == ["1"]
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


def test_the_position_of_the_one_file_that_there_was_goes_on(
    tmp_path: Path, reader_of: Callable[..., Reader]
) -> None:
    path = tmp_path / "a.log"
    append(path, "1\n2\n")
    reader = reader_of(path)
    reader.settle()
    assert reader.position is not None
    (one,) = parse_positions(reader.position).values()
    old = {"v": 1, "path": str(path), "inode": one.inode, "offset": one.offset}
    reader.position = json.dumps({**old, "fingerprint": one.fingerprint, "modified": one.modified})
    append(path, "3\n")
    append(tmp_path / "b.log", "4\n")
    reader.paths = [str(tmp_path / "*.log")]
    reader.restart()
    reader.settle()
    assert sorted(reader.stored) == ["1", "2", "3", "4"]


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


def test_a_folder_that_cannot_be_listed_is_told(
    tmp_path: Path, reader_of: Callable[..., Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    reader = reader_of(tmp_path / "*.log")
    monkeypatch.setattr("os.scandir", refusing)
    reader.look()
    assert reader.seen[-1].problems == [f"{tmp_path}: Permission denied"]


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
    assert len(parse_positions(reader.position)) == MAX_FILES


def test_a_file_that_is_long_gone_is_forgotten(tmp_path: Path, reader_of: Callable[..., Reader]) -> None:
    append(tmp_path / "a.log", "a\n")
    append(tmp_path / "b.log", "b\n")
    os.utime(tmp_path / "a.log", (1_000_000_000, 1_000_000_000))
    reader = reader_of(tmp_path / "*.log")
    reader.settle()
    (tmp_path / "a.log").unlink()
    reader.settle()
    append(tmp_path / "b.log", "still known\n")
    reader.settle()
    assert reader.position is not None
    assert len(parse_positions(reader.position)) == 2
    reader.now += FORGET + 1
    append(tmp_path / "b.log", "not any more\n")
    reader.settle()
    assert len(parse_positions(reader.position)) == 1


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
    (warning,) = [text for gathered in reader.seen for text in gathered.warnings]
    assert warning.startswith(f"{tmp_path}/sensor-2.log is taken for a rotated file of {tmp_path}/sensor.log")
    reader.paths = [str(tmp_path / "*.log"), str(tmp_path / "sensor-2.log")]
    reader.restart()
    reader.settle()
    assert reader.stored == ["1", "2", "3"]
    assert reader.seen[-1].warnings == []


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
