"""Which files a path with wildcards means: `*`, `?` and `[…]` in any part of it, none of which matches a
leading dot. It only looks."""

from __future__ import annotations

import itertools
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from fnmatch import translate
from functools import lru_cache
from typing import Final, NamedTuple

from agent.leaf.inputs.file.positions import live_names

MAX_MATCHES: Final = 2_000
"""Names that are looked at for one path at a time."""
_WILD: Final = re.compile(r"[*?[]")
_PACKED: Final = (".gz", ".zst", ".xz", ".bz2", ".lz4", ".zip")


class Match(NamedTuple):
    """A file that is there. `named` says that its path was given without wildcards."""

    path: str
    device: int
    inode: int
    link: bool = False
    named: bool = False


class Choice(NamedTuple):
    """The files to follow, by path, and those that rotation made of others, with the path of that one."""

    live: Mapping[str, Match]
    rotated: Mapping[str, str]


def is_wild(path: str) -> bool:
    return _WILD.search(path) is not None


def matches(path: str, problems: dict[str, str]) -> Iterator[Match]:
    """The regular files that an absolute path means. A folder that can't be read is a problem, by its path;
    one that is not there means no file."""
    if not is_wild(path):
        yield from _named(path)
        return
    left = MAX_MATCHES
    for match in _walk("/", path.strip("/").split("/"), problems):
        left -= 1
        if left < 0:
            problems[path] = f"{path} means more than {MAX_MATCHES} files; make it narrower"
            return
        yield match


def origins(path: str) -> Iterator[str]:
    """The paths among those that this one with wildcards means of which there is a rotated file, whether they
    are there or not."""
    if is_wild(path):
        walk = itertools.islice(_walk("/", path.strip("/").split("/"), {}, origin=True), MAX_MATCHES)
        yield from (match.path for match in walk)


def choose(candidates: Iterable[Match], followed: Set[str], is_known: Callable[[str], bool]) -> Choice:
    """Which of the files to follow: each once, whatever names it has, and none that was packed. Of those that
    wildcards found none that rotation made of another one, for that is read with the other: one that is
    there, or that `is_known`. `followed` are the paths that are followed already."""
    ordered = sorted(
        candidates, key=lambda match: (not match.named, match.path not in followed, match.link, match.path)
    )
    names = {match.path for match in ordered}
    live: dict[str, Match] = {}
    rotated: dict[str, str] = {}
    inodes: set[tuple[int, int]] = set()
    for match in ordered:
        if not match.named:
            if match.path.endswith(_PACKED) or (match.device, match.inode) in inodes:
                continue
            if (origin := _origin(match.path, names, is_known)) is not None:
                rotated[match.path] = origin
                continue
        inodes.add((match.device, match.inode))
        live.setdefault(match.path, match)
    return Choice(live, rotated)


def _origin(path: str, names: Set[str], is_known: Callable[[str], bool]) -> str | None:
    """The path of which rotation made this one."""
    folder, name = os.path.split(path)
    for live_name in live_names(name):
        origin = os.path.join(folder, live_name)  # noqa: PTH118
        if origin in names or is_known(origin):
            return origin
    return None


def _named(path: str) -> Iterator[Match]:
    try:
        info = os.stat(path)  # noqa: PTH116 - as below
    except OSError:
        return  # its tailer meets this too, and reports it
    if stat.S_ISREG(info.st_mode):
        yield Match(path, info.st_dev, info.st_ino, named=True)


def _walk(
    folder: str, parts: list[str], problems: dict[str, str], *, origin: bool = False
) -> Iterator[Match]:
    head, rest = parts[0], parts[1:]
    if rest and not is_wild(head):
        yield from _walk(os.path.join(folder, head), rest, problems, origin=origin)  # noqa: PTH118
        return
    fit, dotted = _pattern(head).match, head.startswith(".")
    try:
        with os.scandir(folder) as entries:
            listed = [entry for entry in entries if dotted or entry.name[0] != "."]
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        problems[folder] = f"{folder}: {error.strerror}"
        return
    for entry in listed:
        if origin and not rest:
            names = filter(fit, live_names(entry.name))
            yield from (Match(os.path.join(folder, live_name), 0, 0) for live_name in names)  # noqa: PTH118
        elif fit(entry.name) and rest:
            if _is_folder(entry):
                yield from _walk(entry.path, rest, problems, origin=origin)
        elif fit(entry.name) and (match := _match(entry)) is not None:
            yield match


@lru_cache(maxsize=256)
def _pattern(part: str) -> re.Pattern[str]:
    return re.compile(translate(part))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _match(entry: os.DirEntry[str]) -> Match | None:
    """The regular file behind an entry, None for anything else and for what is gone by now."""
    try:
        info = entry.stat()
    except OSError:
        return None
    if not stat.S_ISREG(info.st_mode):
        return None
    return Match(entry.path, info.st_dev, info.st_ino, link=entry.is_symlink())
