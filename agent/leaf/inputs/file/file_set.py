"""The files that an input follows: those that its paths mean, listed again now and then. It blocks, and
writes nothing.

A file is known by its inode and its content, not by its name: one that is renamed from one followed path to
another is read on there. So that none is read under both names, a file is left only after two scans of all
paths that did not find it at its own.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from agent.leaf.inputs.file.glob import Choice, Match, choose, is_wild, matches, origins
from agent.leaf.inputs.file.open_file import holds
from agent.leaf.inputs.file.positions import MAX_FILES, FilePosition, changed_after, key_of, pack
from agent.leaf.inputs.file.tailer import Tailer

FORGET: Final = 3600.0
"""Seconds after which a file that is gone is forgotten, when it was last changed a day ago or earlier."""
WATCH: Final = 60.0
"""Seconds between two looks at files that are left out."""
_OLD: Final = 86_400 * 10**9
_NOTHING: Final = Choice({}, {})
_NO_PERMIT: Final = -1


class TrackedFile(Struct, eq=False):
    """One file. Times are monotonic seconds."""

    tailer: Tailer
    key: bytes
    """Stands for its path in a position."""
    named: bool
    """Whether the options name it, so that wildcards did not find it."""
    idle_until: float = -math.inf
    gone: float | None = None
    """Since when no file is at its path."""
    packed: tuple[FilePosition, bytes] | None = None

    def record(self, position: FilePosition) -> bytes:
        """A position in this file as it is stored."""
        if self.packed is None or self.packed[0] != position:
            self.packed = (position, pack(self.key, position))
        return self.packed[1]


class FileSet:
    """Follows `paths`, absolute ones, on from the positions that were `stored`. Without any, files that are
    there at the first scan are read from their beginning or, with `from_end`, from their end."""

    def __init__(
        self, paths: Sequence[str], stored: Mapping[bytes, FilePosition], *, from_end: bool = False
    ) -> None:
        self._paths = paths
        self._stored = dict(stored)
        self._from_end = from_end and not stored
        self._single = len(paths) == 1 and not is_wild(paths[0])
        self._by_path: dict[str, TrackedFile] = {}
        self._left_over: list[TrackedFile] = []
        self._choice = _NOTHING
        self._began: float | None = None
        self._now = 0.0
        self._watched: dict[str, tuple[int, int]] = {}
        self._watched_at = -math.inf
        self._suspected: set[str] = set()
        self.problems: dict[str, str] = {}
        """What stands in the way of finding files, a sentence each by the path that it is about."""
        self.warnings: list[str] = []
        """What the last scan found that may be a mistake, said once, a sentence each."""
        for path in paths:
            if not is_wild(path):
                self._add(path, named=True)

    def files(self) -> list[TrackedFile]:
        return [*self._by_path.values(), *self._left_over]

    def unclaimed(self) -> Iterator[bytes]:
        """The records of files that were read and are not there."""
        return (pack(key, position) for key, position in self._stored.items())

    def scan(self, now: float) -> None:
        """Look at all paths: begin what is new, hand on what has another name, forget what is long gone.
        `now` is monotonic, in seconds."""
        first = self._began is None
        self._began = now if self._began is None else self._began
        self._now = now
        self.problems = {}
        before = self._choice.live
        matched = itertools.chain.from_iterable(matches(path, self.problems) for path in self._paths)
        self._choice = choose(matched, self._by_path.keys(), self._is_known)
        if not self._single:
            self._hand_on()
            self._begin()
            self._permit(None if first else before)
        self._from_end = False
        self._forget()
        self._watch()

    def go_on(self, file: TrackedFile, position: FilePosition) -> None:
        """Read a file on from another position."""
        old = file.tailer
        old.close()
        file.tailer = Tailer(old.path, position, alone=old.alone)
        file.tailer.permit = None if self._single else _NO_PERMIT

    def drop(self, file: TrackedFile) -> None:
        file.tailer.close()
        if self._by_path.get(file.tailer.path) is file:
            del self._by_path[file.tailer.path]
        elif file in self._left_over:
            self._left_over.remove(file)

    def close(self) -> None:
        for file in self.files():
            file.tailer.close()

    def _is_known(self, path: str) -> bool:
        return path in self._by_path or key_of(path) in self._stored

    def _hand_on(self) -> None:
        """A file that was renamed from one path that is followed to another goes on there."""
        live = self._choice.live
        holders: dict[int, list[TrackedFile]] = defaultdict(list)
        for file in self._by_path.values():
            if file.tailer.inode is not None:
                holders[file.tailer.inode].append(file)
        moves: dict[str, FilePosition] = {}
        left: dict[str, FilePosition] = {}
        claimed: dict[bytes, FilePosition] = {}
        for path, match in live.items():
            own = self._by_path.get(path)
            if own is not None and _is_at_home(own.tailer, match):
                continue
            holder = next((file for file in holders[match.inode] if self._has_left(file, path)), None)
            if holder is not None and (position := holder.tailer.position_in_file) is not None:
                moves[path] = left[holder.tailer.path] = position
            elif own is None and (key := self._stored_at(path, match)) is not None:
                moves[path] = claimed[key] = self._stored[key]
        for key, position in claimed.items():
            self._stored[key] = changed_after(position.modified)
        for path in {*moves, *left}:
            self._take_off(path, drain=path not in left)
        for path, position in moves.items():
            self._add(path, named=live[path].named, position=position)
        for path, position in left.items():
            if path not in moves:
                self._stored[key_of(path)] = changed_after(position.modified)
                if path in self._paths:
                    self._add(path, named=True)

    def _has_left(self, file: TrackedFile, path: str) -> bool:
        """Whether a file that is followed is at this path and at its own no more."""
        own = file.tailer.path
        return own != path and file.tailer.is_in(path) and not file.tailer.is_in(own)

    def _take_off(self, path: str, *, drain: bool) -> None:
        """A path gets another file. What is left to read of the one that it had is read, if it is open."""
        file = self._by_path.pop(path, None)
        if file is None:
            return
        if drain and file.tailer.opened:
            file.tailer.alone, file.tailer.permit = True, None
            file.key = key_of(f"{path}\0{file.tailer.inode}")
            file.packed = None
            self._left_over.append(file)
        else:
            file.tailer.close()

    def _stored_at(self, path: str, match: Match) -> bytes | None:
        """The key of the stored position that is in the file at a path, where its own path is another."""
        own = key_of(path)
        position = self._stored.get(own)
        if position is not None and position.inode == match.inode and holds(path, position):
            return None
        for key, position in self._stored.items():
            if key != own and position.inode == match.inode and position.offset and holds(path, position):
                return key
        return None

    def _begin(self) -> None:
        unread = []
        for path, match in self._choice.live.items():
            if path in self._by_path:
                continue
            if key_of(path) in self._stored or self._make_room():
                self._add(path, named=match.named)
            else:
                unread.append(path)
        for path in self._choice.rotated:
            if key_of(path) in self._stored:
                self._add(path, named=False, alone=True)
        if self._stored:
            for origin in set(itertools.chain.from_iterable(map(origins, self._paths))):
                if origin not in self._by_path and key_of(origin) in self._stored:
                    self._add(origin, named=False)
        if unread:
            others = f", nor are {len(unread) - 1} others" if len(unread) > 1 else ""
            self.problems[unread[0]] = (
                f"{unread[0]} is not read{others}: {MAX_FILES} files are followed already; give some of them"
                " an input of their own, or move away those that are done with"
            )

    def _make_room(self) -> bool:
        """Whether one more file can be followed. Those that are gone make room, the oldest first."""
        while len(self._by_path) + len(self._stored) >= MAX_FILES:
            gone = [(position.modified, file) for file in self._gone() if (position := file.tailer.position)]
            stored = [(position.modified, key) for key, position in self._stored.items()]
            if stored:
                del self._stored[min(stored)[1]]
            elif gone:
                self.drop(min(gone, key=lambda entry: entry[0])[1])
            else:
                return False
        return True

    def _gone(self) -> list[TrackedFile]:
        """Files that wildcards found and find no more, not even what rotation made of them."""
        matched = {*self._choice.live, *self._choice.rotated, *self._choice.rotated.values()}
        return [file for path, file in self._by_path.items() if not file.named and path not in matched]

    def _forget(self) -> None:
        old = time.time_ns() - _OLD
        gone = self._gone()
        for file in self._by_path.values():
            if file not in gone:
                file.gone = None
        for file in gone:
            file.gone = self._now if file.gone is None else file.gone
            position = file.tailer.position
            is_old = self._now - file.gone > FORGET and (position is None or position.modified < old)
            if is_old and Path(file.tailer.path).parent.is_dir():
                self.drop(file)
        if self._began is not None and self._now - self._began > FORGET:
            for key in [key for key, position in self._stored.items() if position.modified < old]:
                del self._stored[key]

    def _watch(self) -> None:
        """Tell of files that are left out as rotated ones and are written to all the same."""
        self.warnings = []
        if self._now - self._watched_at < WATCH:
            return
        self._watched_at = self._now
        before, self._watched = self._watched, {}
        for path, origin in self._choice.rotated.items():
            try:
                info = os.stat(path)  # noqa: PTH116
            except OSError:
                continue
            previous = before.get(path)
            self._watched[path] = now = (info.st_ino, info.st_mtime_ns)
            grew = previous is not None and previous != now and previous[0] == now[0]
            if grew and origin in self._choice.live and path not in self._suspected:
                self._suspected.add(path)
                self.warnings.append(
                    f"{path} is taken for a rotated file of {origin}, so it is not read on its own, but it is"
                    " written to; if it is none, name it in path without wildcards"
                )

    def _permit(self, before: Mapping[str, Match] | None) -> None:
        live, rotated = self._choice
        followed = frozenset(path for path in self._by_path if path not in rotated)
        for path, file in self._by_path.items():
            tailer = file.tailer
            tailer.others = followed
            tailer.alone = tailer.alone or (path in rotated and not file.named)
            at = live[path].inode if path in live else 0
            was = None if before is None else before[path].inode if path in before else 0
            if tailer.inode is None:
                tailer.permit = at
            elif tailer.opened:
                has_left = was is not None and tailer.inode not in (at, was)
                tailer.permit = at if has_left else _NO_PERMIT
            else:
                tailer.permit = at if was == at else _NO_PERMIT

    def _add(
        self, path: str, *, named: bool, position: FilePosition | None = None, alone: bool = False
    ) -> None:
        key = key_of(path)
        stored = self._stored.pop(key, None)
        tailer = Tailer(path, position or stored, from_end=self._from_end, alone=alone)
        tailer.permit = None if self._single else _NO_PERMIT
        self._by_path[path] = TrackedFile(tailer, key, named)


def _is_at_home(tailer: Tailer, match: Match) -> bool:
    """Whether the file that is followed is still at its path."""
    return tailer.inode == match.inode and (tailer.opened or tailer.is_in(tailer.path))
