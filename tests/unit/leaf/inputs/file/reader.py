"""What follows real files in tests: its clock, and what a store and a state directory would hold."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest import mock

from agent.leaf.inputs.file.catalogue import Doubt
from agent.leaf.inputs.file.open_file import OpenFile
from agent.leaf.inputs.file.tail_group import QUIET, SCAN, ReadResult, TailGroup

ENDLESS = 10_000
"""More looks than any test needs to read all there is."""


class Reader:
    """Stores lines and position in one act, and keeps the catalogue in another. `until` may be a piece of
    which a part is stored, with its position and all its lines."""

    def __init__(self, *paths: Path | str, from_end: bool = False) -> None:
        self.paths = [str(path) for path in paths]
        self.now = 0.0
        self.stored: list[str] = []
        self.position: str | None = None
        self.kept: str | None = None
        self.seen: list[ReadResult] = []
        self.begun: tuple[str, list[str]] | None = None
        self.keeps = True
        """Whether the disk takes the catalogue."""
        self.descriptors = 100
        self._from_end = from_end
        self.following = self._begin()

    def _begin(self) -> TailGroup:
        until = self.begun[0] if self.begun is not None else None
        following = TailGroup(
            self.paths,
            self.position,
            self.kept,
            from_end=self._from_end,
            until=until,
            descriptors=self.descriptors,
        )
        if following.is_from_older_state:
            self.seen.append(ReadResult(doubts=[Doubt("twice", "all files", "are read from an older state")]))
        return following

    def gather(self) -> tuple[ReadResult, str | None, list[str]]:
        """What is read, with the position behind it and its lines."""
        gathered = self.following.gather(self.now)
        self.seen.append(gathered)
        if self.keeps and (text := self.following.unkept()) is not None:
            self.kept = text
            self.following.keep()
        lines = [
            line for piece in gathered.pieces for line in piece.lines.decode(errors="replace").splitlines()
        ]
        return gathered, self.following.position(), lines

    def look(self, *, take: bool = True) -> bool:
        gathered, position, lines = self.gather()
        if gathered.pieces and take and position is not None:
            if self.begun is not None and self.following.is_reading_again:
                assert (position, lines) == self.begun, "it ends where it ended, with the same lines"
                lines = lines[len(lines) // 2 :]
            self.stored += lines
            self.position = position
            self.begun = None
            self.following.take()
        return gathered.more

    def die_between_parts(self) -> None:
        """Store the first half of what is read, and begin anew."""
        gathered, position, lines = self.gather()
        if gathered.pieces and self.begun is None and position is not None:
            self.stored += lines[: len(lines) // 2]
            self.begun = (position, lines)
        self.restart()

    def settle(self) -> None:
        """Look until nothing happens for longer than a renamed file is waited for."""
        for _ in range(5 if self.descriptors > 1 else 20):  # else the files wait for each other
            assert any(not self.look() for _ in range(ENDLESS)), "it comes to rest"
            self.now += max(QUIET, SCAN)

    def restart(self) -> None:
        self.following.close()
        self.following = self._begin()

    @property
    def doubts(self) -> list[tuple[str, str]]:
        return [(doubt.kind, str(doubt)) for gathered in self.seen for doubt in gathered.doubts]

    @property
    def lost(self) -> list[str]:
        return [text for kind, text in self.doubts if kind == "lacks"]

    @property
    def twice(self) -> list[str]:
        return [text for kind, text in self.doubts if kind == "twice"]


@contextmanager
def readers() -> Iterator[Callable[..., Reader]]:
    made: list[Reader] = []

    def make(*paths: Path | str, from_end: bool = False) -> Reader:
        made.append(Reader(*paths, from_end=from_end))
        return made[-1]

    yield make
    for one in made:
        one.following.close()


class Deleted:
    """Files that were deleted, each of which keeps its inode until `give` makes it a new file: what file
    systems do by chance. The reader takes them for deleted, and what it holds open stays as it is."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="petiole-deleted-"))
        self._inodes: list[int] = []
        really = OpenFile.is_deleted
        self._patched = mock.patch.object(
            OpenFile,
            "is_deleted",
            lambda file: really(file) or os.fstat(file.fd).st_ino in self._inodes,
        )
        self._patched.start()

    def put(self, path: Path) -> int:
        """Delete a file; its inode."""
        inode = path.stat().st_ino
        path.rename(self._folder / str(inode))
        self._inodes.append(inode)
        return inode

    def give(self, path: Path) -> None:
        """Create an empty file with the inode that was freed last, if there is any."""
        held = set(_held())
        for inode in reversed(self._inodes):
            if inode not in held:
                self._inodes.remove(inode)
                os.truncate(self._folder / str(inode), 0)
                (self._folder / str(inode)).rename(path)
                return

    def close(self) -> None:
        self._patched.stop()
        shutil.rmtree(self._folder)


def _held() -> Iterator[int]:
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the folder itself
            yield fd.stat().st_ino


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)
