"""Real files that are written, rotated, renamed, copied, cut and restored, by a clock that jumps: each line
is stored once. Lines that the course itself made undecidable may lack or be stored twice, and are named
then."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from agent.leaf.inputs.file.tail_group import QUIET, REST, SCAN
from tests.harness.examples import machine
from tests.unit.leaf.inputs.file.reader import Deleted, Reader, append

NAMES = st.sampled_from(["a", "b", "c"])
CLOCK = st.integers(0, 4_000_000_000)
_HEAD = "x" * 40
"""With it a kilobyte is a few lines long, so that marks are of the head alone and of less."""


class Files(RuleBasedStateMachine):
    """Files and what follows them. The paths of the configuration are `patterns[0]`, and at times another."""

    patterns = ("*.log", "[ab].log")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="petiole-files-"))
        self.reader = Reader(self.folder / self.patterns[0])
        self.away = Path(tempfile.mkdtemp(prefix="petiole-files-"))
        self.deleted = Deleted()
        self.reuses = False
        """Whether a new file gets the inode of a deleted one, unless the reader holds that open."""
        self.written: list[str] = []
        self.may_lack: set[str] = set()
        self.may_double: set[str] = set()
        self.gone: set[Path | int] = set()
        """Paths and inodes of files that others were renamed over."""
        self.is_replaced = False
        """Whether a file took the place or the inode of one that is gone, and may be the rest of it."""
        self.forgets = False
        """Whether a file was cut while no catalogue could be kept: a restart forgets where it was cut."""
        self.backup: str | None = None
        self.clock = 1_700_000_000
        self.stamps = itertools.count()
        self.renamed = itertools.count()

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def stamp(self, path: Path) -> None:
        time = self.clock * 10**9 + next(self.stamps)  # the kernel's clock may give one time to two writes
        os.utime(path, ns=(time, time))
        self.is_replaced |= path.stat().st_ino in self.gone

    def drop(self, path: Path) -> None:
        """Delete a file."""
        self.gone.add(self.deleted.put(path))

    def make(self, path: Path) -> Path:
        if self.reuses and not path.exists():
            self.deleted.give(path)
        return path

    def copy(self, path: Path, to: Path) -> None:
        shutil.copyfile(path, self.make(to))
        self.stamp(to)

    def append(self, path: Path, text: str) -> None:
        self.is_replaced |= path in self.gone and not path.exists()
        append(self.make(path), text)
        self.stamp(path)

    def put(self, path: Path, name: str, pad: int = 0) -> None:
        """Append a line; behind a torn one it is a part of that."""
        line = f"{name} {len(self.written)} {_HEAD}{'y' * pad}"
        before = path.read_bytes().rpartition(b"\n")[2] if path.exists() else b""
        torn = before.rpartition(b"\0")[2].decode()
        self.append(path, f"{line}\n")
        self.wrote(torn + line)

    def wrote(self, line: str) -> None:
        self.written.append(line)
        if self.forgets:
            self.may_lack.add(line)

    def files(self) -> list[Path]:
        return sorted(self.folder.iterdir())

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
        for _ in range(count):
            self.put(self.path(name), name)

    @rule(name=NAMES)
    def write_more_than_a_batch(self, name: str) -> None:
        for _ in range(3):
            self.put(self.path(name), name, pad=120_000)

    @rule(name=NAMES)
    def write_in_two_parts(self, name: str) -> None:
        line = f"{name} {len(self.written)} {_HEAD}"
        torn = self.path(name).read_bytes().rpartition(b"\n")[2] if self.path(name).exists() else b""
        self.append(self.path(name), line[:5])
        self.reader.look()
        self.append(self.path(name), f"{line[5:]}\n")
        self.wrote(torn.rpartition(b"\0")[2].decode() + line)

    @rule(name=NAMES, count=st.integers(1, 3000))
    def write_nuls(self, name: str, count: int) -> None:
        if self.path(name).exists() and self.path(name).read_bytes().endswith(b"\n"):
            self.append(self.path(name), "\0" * count)

    @rule(clock=CLOCK)
    def set_the_clock(self, clock: int) -> None:
        self.clock = clock

    @rule(which=st.integers(0, 30), clock=CLOCK)
    def touch(self, which: int, clock: int) -> None:
        if files := self.files():
            os.utime(files[which % len(files)], (clock, clock))

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
            self.copy(path, self.folder / f"{name}.log.1")
            os.truncate(path, 0)
            self.stamp(path)

    @rule(name=NAMES, looks=st.integers(0, 2), writes=st.booleans())
    def rotate_slowly_by_copying_and_truncating(self, name: str, looks: int, writes: bool) -> None:
        """The reader sees the copy, and lines behind it, before the truncation."""
        path = self.path(name)
        if not path.exists() or not path.stat().st_size or self.reader.begun is not None:
            return
        self.may_double |= set(path.read_bytes().replace(b"\0", b"").decode().splitlines())  # both may be new
        self.shift(name)
        self.copy(path, self.folder / f"{name}.log.1")
        if writes:
            self.put(path, name)
        for _ in range(looks):
            self.reader.now += SCAN
            self.reader.look()
        if writes:
            self.reader.settle()
        os.truncate(path, 0)
        self.stamp(path)

    @rule(
        name=NAMES, other=NAMES, rotations=st.integers(0, 2), looks=st.integers(0, 2), restarts=st.booleans()
    )
    def rename_over_another(self, name: str, other: str, rotations: int, looks: int, restarts: bool) -> None:
        if name == other or not self.path(name).exists():
            return
        for number in range(rotations):
            if number:
                self.put(self.path(other), other)
            self.rotate_by_renaming(other)
        if not rotations:
            self.reader.settle()
        if self.path(other).exists():
            self.gone.add(self.path(other))
            self.drop(self.path(other))
            self.is_replaced = True
        self.path(name).rename(self.path(other))
        for _ in range(looks):
            self.reader.now += SCAN
            self.reader.look()
        if restarts:
            self.reader.restart()

    @rule(name=NAMES, again=st.booleans(), restarts=st.booleans())
    def rename_to_another_path_that_is_followed(self, name: str, again: bool, restarts: bool) -> None:
        if not self.path(name).exists():
            return
        self.path(name).rename(self.folder / f"renamed-{next(self.renamed)}x.log")
        if again:
            self.put(self.path(name), name)
        if restarts:
            self.reader.restart()
        self.reader.look()

    @rule(name=NAMES)
    def give_a_rotated_file_a_followed_name(self, name: str) -> None:
        if (self.folder / f"{name}.log.1").exists():
            (self.folder / f"{name}.log.1").rename(self.folder / f"archived-{next(self.renamed)}x.log")

    @rule(name=NAMES, writes=st.booleans(), restarts=st.booleans())
    def replace_by_a_grown_copy(self, name: str, writes: bool, restarts: bool) -> None:
        path = self.path(name)
        if not path.exists() or not path.stat().st_size:
            return
        self.reader.settle()
        if restarts:
            self.reader.following.close()
        copy = self.folder / ".copy"
        self.copy(path, copy)
        if writes:
            self.put(copy, name)
        self.drop(path)
        copy.rename(path)
        if restarts:
            self.reader.restart()
        self.reader.settle()

    @rule(name=NAMES)
    def empty(self, name: str) -> None:
        self.reader.settle()
        if self.path(name).exists():
            os.truncate(self.path(name), 0)
            self.stamp(self.path(name))
            self.is_replaced = True

    @rule(name=NAMES)
    def pack_a_rotated_file(self, name: str) -> None:
        self.reader.settle()
        if (self.folder / f"{name}.log.1").exists():
            self.drop(self.folder / f"{name}.log.1")
            # Without a catalogue or a file after it, a restart does not know that it was read to its end.
            is_known = self.reader.keeps and self.path(name).exists() and self.path(name).stat().st_size
            self.is_replaced |= not is_known

    @rule(name=NAMES, restarts=st.booleans())
    def take_away_or_bring_back(self, name: str, restarts: bool) -> None:
        away = self.away / f"{name}.log"
        if away.exists() and not self.path(name).exists():
            away.rename(self.path(name))
        elif self.path(name).exists() and not away.exists():
            self.reader.settle()
            self.path(name).rename(away)
            self.is_replaced = True
        if restarts:
            self.reader.restart()

    @rule(name=NAMES, rest=st.booleans())
    def delete(self, name: str, rest: bool) -> None:
        self.reader.settle()
        if self.path(name).exists():
            self.drop(self.path(name))
        self.is_replaced = True
        if rest:
            self.reader.settle()
            self.reader.now += REST
            self.reader.settle()

    @rule(name=NAMES, size=st.integers(1, 400), nuls=st.integers(0, 3000), restarts=st.booleans())
    def cut_off(self, name: str, size: int, nuls: int, restarts: bool) -> None:
        """A power cut takes the end of a file that was read, and may leave NULs there."""
        path = self.path(name)
        if not path.exists():
            return
        self.reader.settle()
        data = path.read_bytes()
        if len(data) <= 1024 + size:
            return
        kept = data[:-size]
        kept = kept[: kept.rfind(b"\n") + 1]
        if b"\0" in data or len(kept) < 1024:  # old NULs can't be told from new ones, nor short beginnings
            self.may_double |= set(kept.replace(b"\0", b"").decode().splitlines())
        path.write_bytes(kept + b"\0" * nuls)
        self.stamp(path)
        if not self.reader.keeps:
            self.forgets = True
            # A copy of it may be one of the file as it was read.
            self.may_double |= set(kept.replace(b"\0", b"").decode().splitlines())
        if restarts:
            self.reader.restart()
        if nuls:
            self.put(path, name)
            end = len(kept) + nuls
            if data[end - 1 : end] == b"\0" != data[end : end + 1]:
                self.may_lack.add(
                    self.written[-1]
                )  # these NULs end where others did: a cut alone looks the same
        self.reader.settle()

    @rule(name=NAMES, size=st.integers(1, 400), restarts=st.booleans())
    def restore_an_older_copy_that_grew(self, name: str, size: int, restarts: bool) -> None:
        """Where the old lines end and the new ones begin can't be decided."""
        path = self.path(name)
        if not path.exists():
            return
        self.reader.settle()
        data = path.read_bytes()
        if len(data) <= 1024 + size:
            return
        kept = data[:-size]
        kept = kept[: kept.rfind(b"\n") + 1]
        first = len(self.written)
        path.write_bytes(kept)
        self.put(path, name)
        self.put(path, name, pad=len(data) - len(kept))
        self.may_double |= set(kept.replace(b"\0", b"").decode().splitlines())
        if restarts:
            self.reader.restart()
        self.reader.settle()
        assert set(self.written[first:]) <= set(self.reader.stored) | self.may_lack

    @rule(looks=st.integers(1, 3), hours=st.integers(0, 2), acts=st.booleans(), name=NAMES)
    def list_nothing_for_a_while(self, looks: int, hours: int, acts: bool, name: str) -> None:
        with unlistable(self.folder):
            for _ in range(looks):
                self.reader.now += SCAN + hours * 3600
                self.reader.look()
            if acts:
                self.rotate_by_renaming(name)
                self.put(self.path(name), name)
                self.reader.now += SCAN
                self.reader.look()

    @rule(settles=st.booleans())
    def change_the_paths(self, settles: bool) -> None:
        self.reader.settle()  # what was rotated before the first look at a path is not read
        self.reader.paths = [str(self.folder / self.patterns[1])]
        self.reader.restart()
        if settles:
            self.reader.settle()
        self.reader.paths = [str(self.folder / self.patterns[0])]
        self.reader.restart()

    @rule(keeps=st.booleans())
    def the_disk_takes_the_catalogue(self, keeps: bool) -> None:
        self.reader.keeps = keeps
        self.reader.look(take=False)
        self.forgets &= not keeps or self.reader.begun is not None

    @rule()
    def back_up_the_state_directory(self) -> None:
        self.backup = self.reader.kept

    @rule()
    def restore_the_state_directory(self) -> None:
        if self.backup is None:
            return
        self.reader.kept = self.backup
        self.may_double |= set(self.written)
        self.reader.restart()

    @rule()
    def another_program_creates_a_file(self) -> None:
        append(self.make(self.folder / f"other-{next(self.renamed)}.txt"), "of another program\n")

    @rule(reuses=st.booleans())
    def inodes_are_reused(self, reuses: bool) -> None:
        self.reuses = reuses

    @rule(count=st.sampled_from([1, 100]))
    def have_descriptors(self, count: int) -> None:
        self.reader.descriptors = count
        self.reader.restart()

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
        try:
            for (
                name
            ) in "abc":  # the position in a deleted file is waited for as long as no file is at its path
                if not self.path(name).exists():
                    self.write(name, 1)
            for _ in range(6):
                self.reader.settle()
            self.judge()
        finally:
            self.reader.following.close()
            shutil.rmtree(self.folder)
            shutil.rmtree(self.away)
            self.deleted.close()

    def judge(self) -> None:
        stored, written = Counter(self.reader.stored), Counter(self.written)
        lacking, doubled = set(written - stored), set(stored - written)
        assert lacking <= self.may_lack
        assert doubled <= self.may_double
        assert not lacking or self.reader.lost
        assert not doubled or self.reader.twice
        assert self.may_double or self.is_replaced or not self.reader.twice


class RotatedFilesMatchToo(Files):
    """The same with wildcards that find the rotated files as well."""

    patterns = ("*.log*", "[ab].log*")


@contextmanager
def unlistable(folder: Path) -> Iterator[None]:
    """Meanwhile the folder can't be listed."""
    really = os.scandir

    def refusing(path: str) -> os._ScandirIterator[str]:
        if str(path) == str(folder):
            raise PermissionError(13, "Permission denied", str(path))
        return really(path)

    os.scandir = refusing  # type: ignore[assignment]
    try:
        yield
    finally:
        os.scandir = really


TestFiles = Files.TestCase
TestRotatedFilesMatchToo = RotatedFilesMatchToo.TestCase
TestFiles.settings = TestRotatedFilesMatchToo.settings = machine(400, steps=25)
