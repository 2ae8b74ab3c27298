"""Fills the holes of variables from the server's history (OPC 10000-11, ReadRawModified) beside the
subscription.

One request is under way, for a few variables from about the same time. A page is stored before the next is
requested, so a broken read continues behind the last stored value, also after a restart of the agent. A hole
is filled when the history has the value that ends it, or a later value. A history may lag: until then it is
read again, at growing intervals for `LAG` seconds.

asyncua 2.1.0 as a server gives no continuation point when it cuts an answer to the requested number
(`findings/asyncua-cuts-history-without-a-continuation-point.sh`), so a full page is always continued.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Final

from asyncua import ua
from asyncua.ua.status_codes import StatusCodes
from msgspec import Struct
from structlog.typing import FilteringBoundLogger

from agent.base.logs import listed
from agent.base.wait import event_within, loop_time, unless
from agent.leaf.inputs.opcua.coverage import Coverage, Hole, Kind, Record, has_reached
from agent.leaf.inputs.opcua.limits import OpcuaError
from agent.leaf.inputs.opcua.notifications import FollowedNode, Item, item, time_of
from agent.leaf.inputs.opcua.session import OpcuaSession

LAG: Final = 600.0
"""Seconds without progress for which a history is read again."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
_VALUES: Final = 500
"""Values of a variable per request, at first."""
_MOST_VALUES: Final = 8_000
"""Values of one variable per request, at most: so many may have one time."""
_TOGETHER: Final = 60.0
"""Seconds within which the reads of a request begin."""
_BEHIND, _FAR_BEHIND = 1.0, 86_400.0
"""Seconds behind a hole's end to read, in the first pass and later: a history may be sparse."""
_BAD: Final = 0x8000_0000
_NOTHING: Final = frozenset(
    (StatusCodes.BadNoData, StatusCodes.BadNoDataAvailable, StatusCodes.BadBoundNotFound)
)
_REFUSED: Final = frozenset(
    (
        StatusCodes.BadHistoryOperationUnsupported,
        StatusCodes.BadHistoryOperationInvalid,
        StatusCodes.BadServiceUnsupported,
        StatusCodes.BadNotSupported,
        StatusCodes.BadNotImplemented,
        StatusCodes.BadNotReadable,
        StatusCodes.BadUserAccessDenied,
        StatusCodes.BadNodeIdUnknown,
        StatusCodes.BadNodeIdInvalid,
    )
)
_FEWER: Final = frozenset((StatusCodes.BadNoContinuationPoints, StatusCodes.BadContinuationPointInvalid))

Store = Callable[[Sequence[Item]], Awaitable[bool]]


class _Read(Struct):
    """The state of one variable's read."""

    count: int = _VALUES
    due: float = 0.0
    pauses: int = 0
    passes: int = 0
    """Passes to the end of the history."""
    since: float | None = None
    """When it first gave nothing more, or an error."""
    point: bytes | None = None
    alone: bool = False


class _Page(Struct):
    """An answer about one hole."""

    key: bytes
    hole: Hole
    values: list[Item]
    point: bytes | None
    is_reached: bool
    is_sorted: bool
    place: tuple[float, int] = (0.0, 0)
    """Where the hole began before the page was stored."""

    def __post_init__(self) -> None:
        self.place = self.hole.place


class HistoryReader:
    """Fills holes of `nodes`, whose keys are `keys`, until `end`. `store` stores values and returns whether
    to go on; `close` notes records; `missed` names what stays missing.
    """

    def __init__(
        self,
        session: OpcuaSession,
        coverage: Coverage,
        nodes: Sequence[FollowedNode],
        keys: Sequence[bytes],
        log: FilteringBoundLogger,
        *,
        store: Store,
        close: Callable[[list[Record]], Awaitable[None]],
        missed: Callable[[str], None],
    ) -> None:
        self._session, self._coverage, self._nodes = session, coverage, nodes
        self._handles = {key: handle for handle, key in enumerate(keys)}
        self._log, self._store, self._close, self._missed = log, store, close, missed
        self._reads: dict[bytes, _Read] = {}
        self._missing: dict[str, list[str]] = {}
        self._changed = asyncio.Event()
        self._ended = asyncio.Event()

    def look(self) -> None:
        """Look for new holes."""
        self._changed.set()

    def end(self) -> None:
        """Have `run` return; a page that is being stored is stored."""
        self._ended.set()
        self._changed.set()

    async def run(self) -> None:
        """Read until `end`. An error of the connection is the subscription's to notice."""
        was_reading = False
        while not self._ended.is_set():
            self._changed.clear()
            holes = [(key, hole) for key, hole in self._coverage.holes() if key in self._handles]
            if was_reading and not holes:
                self._log.info("history read")
            was_reading = bool(holes)
            now = loop_time()
            due = [(key, hole) for key, hole in holes if self._read(key).due <= now]
            for group in self._groups(due):
                began = loop_time()
                await self._ask(group)
                # The server spends at most half of its time on this.
                if await event_within(self._ended, min(1.0, loop_time() - began)):
                    break
            for why, paths in self._missing.items():
                self._missed(f"{listed(paths)}: {why}")
            self._missing.clear()
            if not due:
                first = min((self._read(key).due for key, _ in holes), default=None)
                await event_within(self._changed, None if first is None else first - now)

    def _read(self, key: bytes) -> _Read:
        return self._reads.setdefault(key, _Read())

    def _groups(self, holes: Iterable[tuple[bytes, Hole]]) -> Iterator[list[tuple[bytes, Hole]]]:
        """Yield holes to read in one request: from about the same time, in the same state."""
        alike: dict[tuple[int, bool, bytes], list[tuple[bytes, Hole]]] = {}
        for key, hole in sorted(holes, key=lambda one: one[1].begin):
            read = self._read(key)
            state = read.count, read.passes > 0, key if read.alone else b""
            alike.setdefault(state, []).append((key, hole))
        for some in alike.values():
            group: list[tuple[bytes, Hole]] = []
            for key, hole in some:
                is_late = group and hole.begin - group[0][1].begin > _TOGETHER
                if is_late or len(group) >= self._session.histories:
                    yield group
                    group = []
                group.append((key, hole))
            yield group

    async def _ask(self, group: Sequence[tuple[bytes, Hole]]) -> None:
        """Read and store a page of each of these holes."""
        reads = [self._read(key) for key, _ in group]
        ids = [self._nodes[self._handles[key]].id for key, _ in group]
        asked = [(ident, read.point) for ident, read in zip(ids, reads, strict=True)]
        end = max(hole.end.time for _, hole in group if hole.end is not None)
        end += _FAR_BEHIND if reads[0].passes else _BEHIND
        request = self._session.history(asked, group[0][1].begin, end, reads[0].count)
        try:
            answers = await unless(self._ended, request)
        except OpcuaError as error:
            if error.is_cut:
                await event_within(self._ended, FIRST_PAUSE)
            for key, hole in group:
                await self._fail(key, hole, error, is_alone=len(group) == 1)
            return
        pages: list[_Page] = []
        for (key, hole), answer in zip(group, answers or (), strict=answers is not None):
            if (values := await self._taken(key, hole, answer)) is not None:
                ordered = sorted(values, key=lambda one: one.time)
                is_reached = any(has_reached(hole, one.time, one.value) for one in values)
                point = answer.ContinuationPoint or None
                pages.append(_Page(key, hole, ordered, point, is_reached, ordered == values))
        if await self._store([one for page in pages for one in page.values]):
            for page in pages:
                await self._turn(page)

    async def _fail(self, key: bytes, hole: Hole, error: OpcuaError, *, is_alone: bool) -> None:
        read = self._read(key)
        read.point = None
        if error.code in _REFUSED:
            await self._give_up(key, f"its history is not readable: {error}")
        elif not is_alone:
            read.alone = True  # perhaps one of them is the trouble
        else:
            is_smaller = error.is_too_large and read.count > 1
            read.count = max(1, read.count // 2)
            if not is_smaller:
                await self._wait(key, hole, str(error))

    async def _taken(self, key: bytes, hole: Hole, answer: ua.HistoryReadResult) -> list[Item] | None:
        """Return the values of a page, None for an error."""
        code, read = answer.StatusCode.value, self._read(key)
        if code in _REFUSED:
            await self._give_up(key, f"its history is not readable: {answer.StatusCode.name}")
        elif code in _FEWER:
            was_alone, read.alone, had_point, read.point = read.alone, True, read.point, None
            if was_alone and not had_point:
                await self._wait(key, hole, answer.StatusCode.name)
        elif code & _BAD and code not in _NOTHING:
            read.point = None
            await self._wait(key, hole, answer.StatusCode.name)
        else:
            return self._values(answer, self._handles[key])
        return None

    async def _turn(self, page: _Page) -> None:
        """Decide how to go on after a stored page."""
        key, hole, read = page.key, page.hole, self._read(page.key)
        point, read.point = read.point, page.point
        is_whole = len(page.values) < read.count and not page.point
        if not page.is_sorted and not is_whole:
            why = "its history is not in the order of its times, so later pages may have been passed over"
            self._missing.setdefault(why, []).append(self._nodes[self._handles[key]].path)
        if page.is_reached:
            await self._end(key, read)
        elif hole.place != page.place:
            read.since, read.pauses = None, 0
            read.passes += is_whole  # some servers give less than they are asked for, and no point
        elif page.point and page.point != point:
            return  # a page may be empty, or have been stored before
        elif is_whole:
            await self._pass(key, hole)
        else:
            await self._repeat(key, read)

    def _values(self, answer: ua.HistoryReadResult, handle: int) -> list[Item]:
        data = answer.HistoryData
        given = (data.DataValues or ()) if isinstance(data, ua.HistoryData) else ()
        return [
            item(handle, self._nodes[handle], value, time_of(value))
            for value in given
            if (value.SourceTimestamp or value.ServerTimestamp)
            and (value.StatusCode is None or value.StatusCode.value not in _NOTHING)
        ]

    async def _repeat(self, key: bytes, read: _Read) -> None:
        """Ask for more after a full page that brought nothing."""
        read.point = None
        if not read.alone:
            read.alone = True
        elif read.count < _MOST_VALUES:
            read.count = min(_MOST_VALUES, 4 * read.count)
        else:
            await self._give_up(key, f"its history has more than {_MOST_VALUES} values of one time")

    async def _pass(self, key: bytes, hole: Hole) -> None:
        """Note that the history ends before the hole does."""
        self._read(key).passes += 1
        await self._wait(key, hole, "")

    async def _wait(self, key: bytes, hole: Hole, trouble: str) -> None:
        read, now = self._read(key), loop_time()
        read.since = now if read.since is None else read.since
        if now - read.since >= LAG:
            ends_alike = hole.end is None or not hole.end.values or hole.end.values & hole.start.values
            if trouble:
                await self._give_up(key, f"its history could not be read: {trouble}")
            elif ends_alike:
                await self._end(key, read)  # nothing shows that a value is missing
            else:
                await self._give_up(key, "its history ends before its present value")
            return
        read.due = now + min(FIRST_PAUSE * 2**read.pauses, LONGEST_PAUSE)
        read.pauses = min(read.pauses + 1, 10)

    async def _give_up(self, key: bytes, why: str) -> None:
        self._missing.setdefault(why, []).append(self._nodes[self._handles[key]].path)
        await self._end(key, self._read(key))

    async def _end(self, key: bytes, read: _Read) -> None:
        self._reads.pop(key, None)
        await self._close([Record(Kind.CLOSED, key)])
        if read.point is not None:
            await self._session.release(self._nodes[self._handles[key]].id, read.point)
