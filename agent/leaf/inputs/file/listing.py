"""Lists followed files and their siblings. Read-only.

Wildcards `*`, `?` and `[…]` work in any part and never match a leading dot. Unreadable places are problems
and do not count as gone.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Container, Iterator, Sequence, Set
from fnmatch import translate
from functools import lru_cache
from typing import Final, NamedTuple

from msgspec import Struct, field

from agent.leaf.inputs.file.positions import age_order, is_rotated, is_sibling, live_names

MAX_MATCHES: Final = 2_000
"""New names examined per path."""
_WILD: Final = re.compile(r"[*?[]")
_PACKED: Final = (".gz", ".zst", ".xz", ".bz2", ".lz4", ".zip")


class Found(NamedTuple):
    """A file: `live` at its `home`, a rotated one of that home, or one with a sought inode (no home)."""

    path: str
    home: str
    device: int
    inode: int
    size: int
    stamps: tuple[int, int]
    """Change times, to notice changes only."""
    pattern: str
    """Its configured path."""
    live: bool = False
    named: bool = False
    """Whether that has no wildcards."""
    link: bool = False


class Listing(Struct):
    """One look at all paths."""

    live: dict[str, Found] = field(default_factory=dict)
    beside: dict[str, Found] = field(default_factory=dict)
    """By path, sorted by age per home."""
    problems: dict[str, str] = field(default_factory=dict)
    """Obstacles by path or folder."""


def is_wild(path: str) -> bool:
    return _WILD.search(path) is not None


def look(
    paths: Sequence[str], followed: Set[str], is_known: Callable[[str], bool], sought: Container[int]
) -> Listing:
    """Look at absolute paths, including `followed` ones. `is_known` tells earlier paths; `sought` inodes
    match any name.
    """
    look_ = _Look(paths, followed, is_known, sought)
    for path in paths:
        look_.take_wild(path) if is_wild(path) else look_.take_named(path)
    return look_.result()


def matches(path: str) -> list[str]:
    """Return the files of an absolute path, without rotated ones."""
    return list(look([path], frozenset(), lambda _: False, ()).live)


class _Look:
    def __init__(
        self,
        paths: Sequence[str],
        followed: Set[str],
        is_known: Callable[[str], bool],
        sought: Container[int],
    ) -> None:
        self._named = {path for path in paths if not is_wild(path)}
        self._followed, self._is_known, self._sought = followed, is_known, sought
        self._folders: dict[str, list[os.DirEntry[str]]] = {}
        self._matches: list[Found] = []
        self._beside: list[tuple[Found, frozenset[str]]] = []
        """With possible homes."""
        self.problems: dict[str, str] = {}

    def take_named(self, path: str) -> None:
        found = self._stat(path, path, path, live=True, named=True)
        if found is not None:
            self._matches.append(found)
        folder, name = os.path.split(path)
        for entry in self._list(folder):
            if is_rotated(entry.name, name):
                self._lies_beside(entry, path, frozenset((path,)))
            elif entry.name != name:
                self._may_be_sought(entry, path)
        if os.path.islink(path):  # noqa: PTH114 - paths are texts here
            self._take_siblings(path, path)

    def take_wild(self, path: str) -> None:
        left = MAX_MATCHES
        for folder, head in self._walk("/", path.strip("/").split("/")):
            fit, dotted = _pattern(head).match, head.startswith(".")
            for entry in self._list(folder):
                if entry.name.startswith(".") and not dotted:
                    self._may_be_sought(entry, path)
                    continue
                homes = frozenset(
                    f"{folder.rstrip('/')}/{name}" for name in live_names(entry.name) if fit(name)
                )
                is_match = fit(entry.name) is not None
                if not is_match and not homes:
                    self._may_be_sought(entry, path)
                    continue
                if entry.path not in self._followed and entry.inode() not in self._sought:
                    left -= 1
                    if left < 0:
                        self.problems[path] = f"{path} means more than {MAX_MATCHES} files; make it narrower"
                        continue
                if is_match:
                    self._matched(entry, path)
                else:
                    self._lies_beside(entry, path, homes)

    def result(self) -> Listing:
        """Return each file once; rotated files are beside their origin."""
        listing = Listing(problems=self.problems)
        names = {match.path for match in self._matches}
        ordered = sorted(
            self._matches, key=lambda one: (not one.named, one.path not in self._followed, one.link, one.path)
        )
        files: set[tuple[int, int]] = set()
        for match in ordered:
            file = (match.device, match.inode)
            if not match.named:
                if match.path.endswith(_PACKED) or file in files:
                    continue
                if (home := self._origin(match.path, names)) is not None:
                    self._beside.append((match._replace(home=home, live=False), frozenset((home,))))
                    continue
            files.add(file)
            listing.live.setdefault(match.path, match)
        for found, homes in sorted(self._beside, key=lambda one: (not one[0].home, age_order(one[0].path))):
            file = (found.device, found.inode)
            if file not in files and found.path not in listing.live:
                files.add(file)
                home = next((one for one in sorted(homes) if one in names or self._is_known(one)), found.home)
                listing.beside[found.path] = found._replace(home=home)
        return listing

    def _origin(self, path: str, names: Set[str]) -> str | None:
        folder, name = os.path.split(path)
        for live_name in sorted(live_names(name)):
            origin = os.path.join(folder, live_name)  # noqa: PTH118
            if origin in names or self._is_known(origin):
                return origin
        return None

    def _matched(self, entry: os.DirEntry[str], pattern: str) -> None:
        found = self._stat(entry.path, entry.path, pattern, live=True, other_kinds=False)
        if found is not None:
            link = entry.is_symlink()
            self._matches.append(found._replace(link=link))
            if link:
                self._take_siblings(entry.path, pattern)

    def _take_siblings(self, path: str, pattern: str) -> None:
        """Add files beside a link's target, to which it may have pointed."""
        folder, target = os.path.split(os.path.realpath(path))
        for entry in self._list(folder):
            if is_sibling(entry.name, target) or is_rotated(entry.name, target):
                self._lies_beside(entry, pattern, frozenset((path,)))

    def _lies_beside(self, entry: os.DirEntry[str], pattern: str, homes: frozenset[str]) -> None:
        if entry.path in self._named or entry.path.endswith(_PACKED) or entry.is_symlink():
            return
        found = self._stat(entry.path, min(homes, default=""), pattern, other_kinds=False)
        if found is not None:
            self._beside.append((found, homes))

    def _may_be_sought(self, entry: os.DirEntry[str], pattern: str) -> None:
        if entry.inode() in self._sought:
            self._lies_beside(entry, pattern, frozenset())

    def _stat(
        self,
        path: str,
        home: str,
        pattern: str,
        *,
        live: bool = False,
        named: bool = False,
        other_kinds: bool = True,
    ) -> Found | None:
        try:
            info = os.stat(path)  # noqa: PTH116 - each look takes many, and this is four times faster
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self.problems[path] = f"{path}: {error.strerror}"
            return None
        if not stat.S_ISREG(info.st_mode):
            if other_kinds:
                self.problems[path] = f"{path}: not a regular file"
            return None
        stamps = (info.st_mtime_ns, info.st_ctime_ns)
        return Found(path, home, info.st_dev, info.st_ino, info.st_size, stamps, pattern, live, named)

    def _walk(self, folder: str, parts: list[str]) -> Iterator[tuple[str, str]]:
        """Yield folders matching a pattern, with its last part."""
        head, rest = parts[0], parts[1:]
        if not rest:
            yield folder, head
        elif not is_wild(head):
            yield from self._walk(os.path.join(folder, head), rest)  # noqa: PTH118
        else:
            fit, dotted = _pattern(head).match, head.startswith(".")
            for entry in self._list(folder):
                if fit(entry.name) and (dotted or not entry.name.startswith(".")) and self._is_folder(entry):
                    yield from self._walk(entry.path, rest)

    def _is_folder(self, entry: os.DirEntry[str]) -> bool:
        try:
            return entry.is_dir()
        except OSError as error:
            self.problems[entry.path] = f"{entry.path}: {error.strerror}"
            return False

    def _list(self, folder: str) -> list[os.DirEntry[str]]:
        if folder not in self._folders:
            self._folders[folder] = []
            try:
                with os.scandir(folder) as entries:
                    self._folders[folder] = sorted(entries, key=lambda entry: entry.name)
            except (FileNotFoundError, NotADirectoryError):
                pass
            except OSError as error:
                self.problems[folder] = f"{folder}: {error.strerror}"
        return self._folders[folder]


@lru_cache(maxsize=256)
def _pattern(part: str) -> re.Pattern[str]:
    return re.compile(translate(part))
