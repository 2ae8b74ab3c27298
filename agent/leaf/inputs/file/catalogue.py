"""Assigns found files to generations. Blocks, and writes nothing.

Inode and content marks identify a file. Otherwise content decides: a generation without its file continues in
one that holds everything read (copy, restored or replaced file). A file beside a live one that begins it is
its copy. Others are new and read from the start, except those rotated before the first look. Undecidable
files are read once, with a `Doubt`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Final, Literal, NamedTuple

from msgspec import Struct, field

from agent.base.logs import listed
from agent.leaf.inputs.file.listing import Found, is_wild, look
from agent.leaf.inputs.file.open_file import OpenFile, Probe, ReplacedError
from agent.leaf.inputs.file.positions import (
    FINGERPRINT_BYTES,
    MAX_FILES,
    MAX_KNOWN,
    Generation,
    Status,
    begin,
    head_digest,
    key_of,
)

WATCH: Final = 60.0
"""Seconds between checks for warnings about ignored files."""
_SHOWN: Final = 3
_WHOLE: Final = "it is read as a whole"
_LOST: Final = 2
"""Looks that must miss a file, which may be renamed during one."""


class Doubt(NamedTuple):
    """Possibly doubled or missing lines."""

    kind: Literal["twice", "lacks"]
    where: str
    reason: str

    def __str__(self) -> str:
        return f"{self.where} {self.reason}"


class Tracked(Struct, eq=False):
    """A generation and its place."""

    known: Generation
    """By stored lines."""
    path: str = ""
    """Its last place."""
    found: Found | None = None
    """By the last look."""
    missing: int = 0
    """Consecutive looks without it."""
    verified: object = None
    """File state in which its read content was seen."""
    reader: OpenFile | None = None
    rested: object = None
    """File state in which it was closed at its end."""
    idle_until: float = float("-inf")
    unreadable: str | None = None
    born: int = 0
    """Its first look, 0 for an earlier run."""

    @property
    def live(self) -> bool:
        return self.found is not None and self.found.live

    @property
    def open(self) -> bool:
        return self.known.status is Status.OPEN

    def close(self) -> None:
        if self.reader is not None:
            self.reader.close()
            self.reader = None

    def restart(self, known: Generation) -> None:
        """Continue from another place."""
        self.close()
        self.known, self.verified, self.rested = known, None, None


class _Look(Struct):
    """The results of one look."""

    placed: dict[int, Found] = field(default_factory=dict)
    """By generation."""
    changed: dict[int, Found] = field(default_factory=dict)
    """Files with a generation's inode but other content."""
    unsure: set[int] = field(default_factory=set)
    """Generations with unreadable files."""
    unknown: list[Found] = field(default_factory=list)
    unread: dict[str, Tracked] = field(default_factory=dict)
    """Generations that only share an inode, by path."""
    homes: set[str] = field(default_factory=set)
    """Paths with nonempty files."""


class Catalogue:
    """Generations of files at absolute `paths`. `looked` has paths seen by earlier looks (`key_of`).

    `from_end` skips the first look's content. `is_older`: the catalogue is older than stored data, so a
    rotated file that it lacks may have been read.
    """

    def __init__(
        self,
        paths: Sequence[str],
        known: Mapping[int, Generation],
        *,
        following: int = 1,
        looked: Iterable[bytes] = (),
        from_end: bool = False,
        is_older: bool = False,
    ) -> None:
        self._paths = paths
        self.tracked = {number: Tracked(one) for number, one in known.items()}
        self.following = max([following, *(number + 1 for number in known)])
        """The next id."""
        self.looked = set(looked)
        self._from_end, self._is_older = from_end, is_older
        self._scans = self._clear_scans = 0
        self._warned_at = float("-inf")
        self._sizes: dict[int, int] = {}
        self._suspected: set[int] = set()
        self._is_forgetting = False
        self.problems: dict[str, str] = {}
        """Obstacles of the search by path."""
        self.warnings: list[str] = []
        """Findings of the last look."""
        self.doubts: list[Doubt] = []
        self.absent: list[str] = []
        """Plain paths without file."""
        self._live: dict[bytes, Tracked] = {}

    def scan(self, now: float) -> None:
        """Look at all paths; `now` in monotonic seconds."""
        self._scans += 1
        self.warnings, self.doubts = [], []
        homes = {one.known.home for one in self.tracked.values()}
        followed = {one.path for one in self.tracked.values() if one.live}
        sought = {one.known.inode for one in self.tracked.values() if one.open}
        listing = look(self._paths, followed, lambda path: key_of(path) in homes, sought)
        self.problems = listing.problems
        seen = self._match([*listing.beside.values(), *listing.live.values()])
        self._settle_copies(seen)
        self._take_over(seen)
        self._judge(seen)
        for file in [file for file in seen.unknown if file.live and file.path in seen.unread]:
            seen.placed[seen.unread[file.path].known.id] = file
            seen.unknown.remove(file)
        self._begin(seen)
        self._note(seen)
        if not self.problems:
            self.looked.update(map(key_of, self._paths))
            self._clear_scans += 1
        self._from_end = False
        self._warn(now)
        self.absent = [path for path in self._paths if not is_wild(path) and path not in listing.live]

    def close(self) -> None:
        for one in self.tracked.values():
            one.close()

    def is_held(self, one: Tracked) -> bool:
        """Tell whether an older generation of the path is read first."""
        if one.known.offset or one.unreadable is not None:
            return False
        return any(
            (other.known.id < one.known.id or one.live)
            and not other.live
            and (other.found is not None or other.reader is not None)
            and other.unreadable is None
            for other in self.tracked.values()
            if other is not one and other.open and other.known.home == one.known.home
        )

    def has_successor(self, one: Tracked) -> bool:
        """Tell whether a later nonempty generation of the path exists."""
        return any(
            other.live or (other.open and other.known.id > one.known.id)
            for other in self.tracked.values()
            if other is not one and other.found is not None and other.known.home == one.known.home
        )

    def finish(self, one: Tracked) -> None:
        """Note a generation as read and left."""
        if one.reader is not None:
            one.known = one.known.at(one.reader.offset, one.reader.fingerprint)
        one.known = one.known._replace(status=Status.DONE)
        one.close()
        one.verified = None

    def _match(self, found: Iterable[Found]) -> _Look:
        found = list(found)
        seen = _Look(homes={file.path for file in found if file.live and file.size})
        by_inode: dict[int, list[Tracked]] = defaultdict(list)
        for one in self.tracked.values():
            by_inode[one.known.inode].append(one)
        for file in found:
            own = [
                one
                for one in by_inode.get(file.inode, ())
                if one.known.id not in seen.placed and one.known.id not in seen.unsure
            ]
            try:
                match = next((one for one in sorted(own, key=_likeliest) if _is_in(one, file)), None)
            except ReplacedError:
                seen.unsure.update(one.known.id for one in own)
                continue
            except OSError as error:
                self.problems[file.path] = f"{file.path}: {error.strerror}"
                seen.unsure.update(one.known.id for one in own)
                continue
            if match is not None and match.known.status is Status.PASSED and file.live:
                del self.tracked[match.known.id]  # it has a name that is followed, and none of it was read
                match = None
            is_unread = match is not None and not match.known.offset and match.reader is None
            # Under a name that is not followed it may be anybody's, with a reused inode.
            is_foreign = not file.home and (match is None or is_unread)
            if match is None or is_foreign:
                for one in own:
                    seen.changed.setdefault(one.known.id, file)
                if not is_foreign:
                    seen.unknown.append(file)
            elif is_unread and file.size:
                seen.unread[file.path] = match
                seen.unsure.add(match.known.id)
                seen.unknown.append(file)
            else:
                seen.placed[match.known.id] = file
        return seen

    def _settle_copies(self, seen: _Look) -> None:
        """Continue in a copy once its origin lost their common content."""
        for copy in [one for one in self.tracked.values() if one.known.status is Status.COPY]:
            file = seen.placed.get(copy.known.id)
            origin = self.tracked.get(copy.known.of)
            if origin is None:
                copy.known = copy.known._replace(status=Status.DONE, of=0)
                continue
            if file is None or origin.known.id in seen.unsure:
                continue
            at = seen.placed.get(origin.known.id)
            if at is None and origin.known.id not in seen.changed and not origin.missing:
                continue
            try:
                with ExitStack() as stack:
                    probe = stack.enter_context(Probe(file))
                    if at is not None and probe.begins(stack.enter_context(Probe(at))):
                        copy.known = copy.known.at(probe.size, probe.at(probe.size))
                        continue
                    if at is None and probe.holds(origin.known):
                        self._move(origin, file, seen)
                        del self.tracked[copy.known.id], seen.placed[copy.known.id]
                        continue
                    start = min(copy.known.offset, self._read_of_copy(origin, probe, file.path))
                    copy.known = copy.known._replace(of=0)
                    self._replace(copy, file, probe, start, seen)
                    if at is None:  # it was read further than its copy goes
                        self.finish(origin)
            except (ReplacedError, OSError):
                continue

    def _read_of_copy(self, origin: Tracked, copy: Probe, path: str) -> int:
        """Return the copy's bytes read in its origin; 0 if the origin was emptied unread and refilled."""
        if copy.holds(origin.known):
            return origin.known.offset
        fits = copy.size < origin.known.offset and _head_fits(origin, copy)
        if fits is None:
            self._name(
                "twice", path, f"begins as {origin.path} did, and more of that file was read; {_WHOLE}"
            )
        return copy.size if fits else 0

    def _take_over(self, seen: _Look) -> None:
        if not seen.unknown:
            return
        lost = self._without_file(seen)
        self._take_over_unread(lost, seen)
        by_head: dict[tuple[int, bytes], list[Tracked]] = defaultdict(list)
        for one in lost:
            if one.known.offset and one.known.status is not Status.COPY:
                by_head[one.known.head_bytes, one.known.head].append(one)
        if not by_head:
            return
        lengths = sorted({length for length, _ in by_head})
        for file in list(seen.unknown):
            try:
                with Probe(file) as probe:
                    holders = [
                        one
                        for length in lengths
                        if length <= probe.size
                        for one in by_head.get((length, head_digest(probe.head(length))), ())
                        if one.known.id not in seen.placed and probe.holds(one.known)
                        if not (file.live and one.known.status is Status.PASSED)
                    ]
            except (ReplacedError, OSError):
                seen.unknown.remove(file)
                continue
            if not holders:
                continue
            best = min(holders, key=lambda one: (one.known.home != key_of(file.home), *_likeliest(one)))
            if _is_gone(best, seen):
                self._move(best, file, seen)
            if file in seen.unknown:
                seen.unknown.remove(file)  # it, or the next look decides

    def _take_over_unread(self, lost: list[Tracked], seen: _Look) -> None:
        for one in lost:
            if one.reader is None or one.known.offset or not _is_gone(one, seen):
                continue
            for file in [file for file in seen.unknown if not file.live]:
                try:
                    with Probe(file) as probe:
                        is_copy = one.reader.is_begin_of(probe)
                except (ReplacedError, OSError):
                    continue
                if is_copy:
                    self._move(one, file, seen)
                    seen.unknown.remove(file)
                    break

    def _judge(self, seen: _Look) -> None:
        live = {key_of(file.home): file for file in seen.unknown if file.live}
        for one in sorted(self._without_file(seen), key=_likeliest) if seen.unknown else ():
            file = seen.changed.get(one.known.id)
            if file not in seen.unknown:
                file = live.get(one.known.home)
            if file is None or file not in seen.unknown or not one.known.offset:
                continue
            if not (one.open or (one.known.status is Status.DONE and one.known.id in seen.changed)):
                continue
            if not _is_gone(one, seen):
                if one.open and one.reader is None:
                    seen.unknown.remove(file)  # the next look may find the older one
                continue
            try:
                with Probe(file) as probe:
                    self._judge_file(one, file, probe, seen)
            except (ReplacedError, OSError):
                if file in seen.unknown:
                    seen.unknown.remove(file)

    def _judge_file(self, one: Tracked, file: Found, probe: Probe, seen: _Look) -> None:
        known, reader = one.known, one.reader
        fits = _head_fits(one, probe)
        if reader is not None and known.id not in seen.changed and not reader.resembles(probe):
            # The deleted file is read to its end. The new one may have been made of a part of it.
            if probe.size and (fits or probe.has_line_of(reader)):
                self._name("twice", file.path, f"has lines of the file that it replaced; {_WHOLE}")
            return
        if fits and probe.size:
            # NULs that were skipped before can't be told from new ones where their end is no longer there.
            is_told = not known.of or probe.is_nul(known.of - 1)
            nuls = probe.nuls_since(known.of if is_told else 0)
            if nuls is not None and nuls < known.offset:
                place = probe.line_end(nuls)
                self.warnings.append(
                    f"{file.path} holds NULs from byte {nuls} on, where {known.offset - nuls} bytes were"
                    " read (power was lost, or an older copy restored): reading continues behind them"
                )
                if not is_told:
                    self._name(
                        "twice",
                        file.path,
                        f"is read again from byte {place}: NULs are there, perhaps old ones",
                    )
                self._replace(one, file, probe, place, seen)
                return
            if probe.size < known.offset and (one.open or not file.live):
                place = probe.line_end(probe.size)
                self._name(
                    "lacks",
                    file.path,
                    f"ends at byte {probe.size}, and {known.offset} bytes of it had been read: reading"
                    " continues at its last whole line; lines that were written there since are not read",
                )
                if place < probe.size:
                    reason = f"is read again from byte {place}: its last line lost its end"
                    self._name("twice", file.path, reason)
                self._replace(one, file, probe, place, seen)
                return
            reason = f"begins as before and differs before byte {known.offset}; {_WHOLE}"
            self._name("twice", file.path, reason)
            self._lose(one, file.path)
            self._drop(one)
            return
        if not one.missing:
            if one.open:
                seen.unknown.remove(file)  # its copy may be seen by the next look
        elif not one.open:
            return
        else:
            if fits is None:
                reason = f"begins as before and differs within its first kilobyte; {_WHOLE}"
                self._name("twice", file.path, reason)
            elif probe.size and (reader is None or probe.has_line_of(reader)):
                reason = f"replaced a file that was read, and may hold lines of that file; {_WHOLE}"
                self._name("twice", file.path, reason)
            self._lose(one, file.path)
            if fits is None:
                self._drop(one)

    def _lose(self, one: Tracked, path: str) -> None:
        self._name(
            "lacks",
            path,
            f"no longer holds what was read of it up to byte {one.known.offset}, nor does one that was"
            " rotated: lines that came after that byte, if there were any, are lost",
        )
        self.finish(one)

    def _drop(self, one: Tracked) -> None:
        one.close()
        del self.tracked[one.known.id]

    def _replace(self, one: Tracked, file: Found, probe: Probe, place: int, seen: _Look) -> None:
        of = min(one.known.of, place)
        self._drop(one)
        seen.placed.pop(one.known.id, None)
        new = begin(self.following, file.home, file.inode).at(place, probe.at(place))
        self._add(new._replace(of=of), file, seen)

    def _begin(self, seen: _Look) -> None:
        live = {file.path: number for number, file in seen.placed.items() if file.live}
        count = len(live)
        ids = {file.path: number for number, file in enumerate(seen.unknown, self.following)}
        """By age: rotated files first."""
        homes = {one.known.home for one in self.tracked.values()}
        unread: list[str] = []
        passed: list[str] = []
        for file in sorted(seen.unknown, key=lambda file: not file.live):
            origin = self.tracked.get(live.get(file.home, 0))
            new = begin(ids[file.path], file.home, file.inode)
            try:
                if not file.size or (not file.live and file.home in seen.homes - live.keys()):
                    continue  # it may be a copy of a file that is looked at next time
                with Probe(file) as probe:
                    if file.live:
                        if count >= MAX_FILES:
                            unread.append(file.path)
                            continue
                        if self._begin_live(new, file, probe, seen):
                            count += 1
                            live[file.path] = new.id
                    elif (
                        key_of(file.pattern) not in self.looked
                        and key_of(file.home) not in homes
                        and file.path not in seen.unread
                    ):
                        self._leave_out(new, file, probe, Status.PASSED, 0, seen)
                        passed.append(file.path)
                    elif origin is not None and self._is_copy(file, probe, origin, seen):
                        self._leave_out(new, file, probe, Status.COPY, origin.known.id, seen)
                    elif file.path in seen.unread:
                        self._add(seen.unread[file.path].known, file, seen)
                    else:
                        self._begin_rotated(new, file, probe, seen)
            except ReplacedError:
                continue
            except OSError as error:
                self.problems[file.path] = f"{file.path}: {error.strerror}"
        if passed:
            self.warnings.append(
                f"{listed(passed, _SHOWN)} had been rotated before the first look, and will not be read; name"
                " them in path without wildcards to have them read"
            )
        if unread:
            others = f", nor are {len(unread) - 1} others" if len(unread) > 1 else ""
            self.problems[unread[0]] = (
                f"{unread[0]} is not read{others}: {MAX_FILES} files are followed already; give some of them"
                " an input of their own, or move away those that are done with"
            )

    def _begin_live(self, known: Generation, file: Found, probe: Probe, seen: _Look) -> bool:
        """Begin a file at its path; False where the next look decides."""
        first = probe.head(FINGERPRINT_BYTES)
        for number, place in seen.placed.items():
            one = self.tracked[number]
            is_read = one.known.offset and one.known.status is not Status.PASSED
            if is_read and one.known.may_begin(first) and probe.holds(one.known):
                reason = f"begins with all that was read of {place.path}, and is read as well"
                self._name("twice", file.path, reason)
                break
        else:
            if self._is_older and self._clear_scans < _LOST:
                self._name_as_older(file)
            elif not self._name_copy(file, probe, seen):
                return False
        if self._from_end:
            end = probe.line_end(probe.size)
            known = known.at(end, probe.at(end))
        self._add(known, file, seen)
        return True

    def _is_copy(self, file: Found, probe: Probe, origin: Tracked, seen: _Look) -> bool:
        with Probe(seen.placed[origin.known.id]) as other:
            if not probe.begins(other):
                return False
        if origin.born == self._scans and probe.size < FINGERPRINT_BYTES:
            self._name("twice", file.path, f"begins {origin.path}, and is read as well: both are new")
            return False
        return True

    def _leave_out(
        self, known: Generation, file: Found, probe: Probe, status: Status, of: int, seen: _Look
    ) -> None:
        known = known.at(probe.size, probe.at(probe.size))
        self._add(known._replace(status=status, of=of), file, seen)

    def _begin_rotated(self, known: Generation, file: Found, probe: Probe, seen: _Look) -> None:
        if self._is_older:
            self._name_as_older(file)
        elif not self._name_copy(file, probe, seen):
            return
        self._add(known, file, seen)

    def _name_as_older(self, file: Found) -> None:
        reason = "is new to an older state that was restored, so whether it was read is not known"
        self._name("twice", file.path, reason)

    def _name_copy(self, file: Found, probe: Probe, seen: _Look) -> bool:
        """Name a new file that may begin a lost one; False if the next look may find that one."""
        lost = [one for one in self._without_file(seen) if _may_be_begun(one, file, probe)]
        if any(one.reader is None and not _is_gone(one, seen) for one in lost):
            return False
        if lost:
            reason = "may be a copy of a file that was read further, and is read as well"
            self._name("twice", file.path, reason)
        return True

    def _note(self, seen: _Look) -> None:
        self._live = {}
        for one in list(self.tracked.values()):
            file = seen.placed.get(one.known.id)
            if file is not None:
                one.found, one.path, one.missing = file, file.path, 0
                if file.live:
                    one.known = one.known._replace(home=key_of(file.home))
                    self._live[one.known.home] = one
                if one.known.status is Status.DONE and (file.live or file.size > one.known.offset):
                    one.known = one.known._replace(status=Status.OPEN)
                    one.rested = None
                continue
            if one.known.id in seen.unsure or (self.problems and one.known.id not in seen.changed):
                continue
            one.found = None
            one.missing += 1
        for one in self.tracked.values():
            is_lost = one.open and one.missing >= _LOST and one.reader is None
            if is_lost and (self._live or one.known.id in seen.changed):  # else its folder may be absent
                self._lose(one, one.path or self._path_of(one))

    def _warn(self, now: float) -> None:
        if now - self._warned_at < WATCH:
            return
        self._warned_at = now
        for one in self.tracked.values():
            file = one.found
            if one.known.status is not Status.PASSED or file is None:
                continue
            before = self._sizes.setdefault(one.known.id, file.size)
            if before < file.size and one.known.id not in self._suspected:
                self._suspected.add(one.known.id)
                self.warnings.append(
                    f"{file.path} is taken for a rotated file of {file.home}, so it is not read alone, but it"
                    " is written to; if it is none, name it in path without wildcards"
                )

    def _without_file(self, seen: _Look) -> list[Tracked]:
        return [
            one
            for number, one in self.tracked.items()
            if number not in seen.placed and number not in seen.unsure
        ]

    def _move(self, one: Tracked, file: Found, seen: _Look) -> None:
        one.restart(one.known._replace(inode=file.inode))
        seen.placed[one.known.id] = file
        seen.changed.pop(one.known.id, None)

    def _add(self, known: Generation, file: Found, seen: _Look) -> None:
        self._make_room()
        self.following = max(self.following, known.id + 1)
        self.tracked[known.id] = Tracked(known, file.path, born=self._scans)
        seen.placed[known.id] = file
        if file in seen.unknown:
            seen.unknown.remove(file)

    def _path_of(self, one: Tracked) -> str:
        live = self._live.get(one.known.home)
        return f"a file of {listed(self._paths, _SHOWN)}" if live is None else live.path

    def _make_room(self) -> None:
        if len(self.tracked) < MAX_KNOWN:
            return
        gone = [one for one in self.tracked.values() if one.missing >= _LOST and one.reader is None]
        if not gone:
            raise OSError(0, f"{MAX_KNOWN} files are known already; move away those that are done with")
        del self.tracked[min(gone, key=lambda one: (one.open, one.known.id)).known.id]
        if not self._is_forgetting:
            self._is_forgetting = True
            self.warnings.append(
                f"{MAX_KNOWN} files are known: the oldest of those that are gone are forgotten, and read"
                " again if they come back"
            )

    def _name(self, kind: Literal["twice", "lacks"], where: str, reason: str) -> None:
        self.doubts.append(Doubt(kind, where, reason))


def _likeliest(one: Tracked) -> tuple[bool, bool, int]:
    return not one.known.offset, not one.open, -one.known.offset


def _is_in(one: Tracked, file: Found) -> bool:
    """Tell whether a file with the generation's inode holds its read content. Raises `ReplacedError` and
    `OSError`.
    """
    if one.reader is not None and one.reader.device != file.device:
        return False
    state = (file.device, file.size, file.stamps, one.known.mark)
    if one.verified != state:
        with Probe(file) as probe:
            if not probe.holds(one.known):
                return False
        one.verified = state
    return True


def _is_gone(one: Tracked, seen: _Look) -> bool:
    """Tell whether a generation surely has no file."""
    if one.known.id in seen.changed:
        return True
    if one.reader is not None:
        return one.reader.is_deleted()
    return one.missing > 0


def _may_be_begun(one: Tracked, file: Found, probe: Probe) -> bool:
    """Tell whether a file may be the beginning of all that was read of a generation."""
    known = one.known
    if not one.open or known.offset <= probe.size:
        return False
    if one.reader is not None:  # one line alone may be the header of any file
        return probe.size > len(one.reader.fingerprint.first_line()) and one.reader.resembles(probe)
    if one.path and known.home != key_of(file.home):
        return False
    head = probe.head(known.head_bytes)
    if len(head) == FINGERPRINT_BYTES:
        return head_digest(head) == known.head
    return known.may_begin(head) or not known.can_tell(head)


def _head_fits(one: Tracked, probe: Probe) -> bool | None:
    """Tell whether a file begins as a generation; None if only its first bytes tell."""
    head = probe.head(one.known.head_bytes)
    if head_digest(head) == one.known.head:
        return True
    if one.reader is not None and one.reader.fingerprint.head.startswith(head):
        return True
    return None if one.known.may_begin(head) else False
