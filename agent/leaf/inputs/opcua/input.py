"""Follows variables of an OPC UA server: the input `opcua`.

A notification is acknowledged once stored, and its place is stored with it. A restarted agent resumes the
subscription, which the server keeps for `keep`, without loss or repeats. A restarted server, or a dropped
subscription, begins with present values. Missing earlier values are read from the server's history, or
the log names the gap.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import UNSET, structs

from agent.base.logs import listed
from agent.base.metrics import Metrics
from agent.base.wait import unless
from agent.contract import Doubt
from agent.leaf.inputs.formats.message import TopicNames
from agent.leaf.inputs.opcua import OpcuaOptions, Position, file_problems, parse_position, problems
from agent.leaf.inputs.opcua.coverage import MAX_HOLES, CoverageFile, Kind, Record, digest
from agent.leaf.inputs.shared import NO_SERVER, LocalServer
from agent.leaf.inputs.shared.positioned_input import SessionInput
from agent.leaf.intake import Chunk, Intake

if TYPE_CHECKING:
    from asyncua import ua

    from agent.leaf.inputs.opcua.notifications import FollowedNode, Item, NotificationPiece
    from agent.leaf.inputs.opcua.session import OpcuaSession, Subscription

_NEW: Final = "the server has no earlier subscription of this agent"


class OpcuaInput(SessionInput[OpcuaOptions]):
    _source = "server"
    _connected = "the server reports"
    _stored = "values are stored again"

    def __init__(self, options: OpcuaOptions, metrics: Metrics, server: LocalServer = NO_SERVER) -> None:
        super().__init__(options, metrics, server, options.url)
        self._position: Position | None = None
        self._times = CoverageFile(server.file("opcua", f"{options.name}.times"), self._log)
        self._turn = asyncio.Lock()
        """Held while a piece is decided and stored, so that pieces are stored in their order."""
        self._keys: list[bytes] = []
        """Of the variables, by handle."""
        self._readable: dict[bytes, bool] = {}
        """Whether a variable has a history, as far as known in this session."""
        self._types: dict[str, str] = {}
        """Names of types of events, by node id."""
        self._lost: str | None = None
        """Why the subscription was given up."""

    def _mistakes(self) -> Iterator[str]:
        return problems(self._options)

    def _obstacles(self) -> Iterator[str]:
        # A server that does not answer is none.
        return file_problems(self._options)

    async def run(self, intake: Intake, stopping: asyncio.Event) -> None:
        self._intake, self._stopping = intake, stopping
        from agent.leaf.inputs.opcua.limits import OpcuaError
        from agent.leaf.inputs.opcua.session import call_limits, connected  # with asyncua, where it is needed

        limits = call_limits()
        self._up.set(0)
        await self._restore()

        async def hold() -> str:
            async with connected(self._options, intake.domain, limits) as session:
                await self._follow(session)
            return "stopping"

        await self._hold(hold, (OpcuaError, OSError))

    async def _restore(self) -> None:
        resume = await unless(self._stopping, self._intake.position(self.name))
        if resume is None:
            return
        try:
            if resume.position is not None:
                self._position = parse_position(resume.position)
            elif resume.until is not None:
                # Of the first piece ever only some lines are stored.
                begun = parse_position(resume.until)
                self._position = structs.replace(begun, parts=begun.parts - 1, n=begun.n - 1)
        except ValueError as error:
            self._log.warning("present values stored again", reason=str(error))
        await self._times.load(0 if self._position is None else self._position.n)

    async def _follow(self, session: OpcuaSession) -> None:
        """Store reports from the last position until the session ends."""
        from agent.leaf.inputs.opcua.history import HistoryReader
        from agent.leaf.inputs.opcua.limits import OpcuaError
        from agent.leaf.inputs.opcua.nodes import find
        from agent.leaf.inputs.opcua.notifications import key_of, means

        nodes, lacking = await find(session, self._options.nodes)
        if lacking:
            self._log.warning(
                "variables missing",
                reason=listed(lacking, by="; "),
                effect="looked for at the next connection",
            )
        if not nodes and not self._options.events:
            raise OpcuaError("it has none of the variables that are selected")
        self._keys, self._readable = [key_of(node) for node in nodes], {}
        meaning = means([*nodes, *self._notifiers()])
        server = await session.server()
        subscription = await self._resume(session, server, meaning)
        if subscription is None:
            subscription = await self._begin(session, server, meaning, nodes)
        self._flows()

        async def fill(items: Sequence[Item]) -> bool:
            return await self._fill(nodes, items)

        reader = HistoryReader(
            session,
            self._times.coverage,
            nodes,
            self._keys,
            self._log,
            store=fill,
            close=self._note,
            missed=self._missed,
        )
        reading = asyncio.create_task(reader.run())
        try:
            while not self._stopping.is_set():
                message = await self._next(session, subscription)
                if message is None or not await self._store(session, message, nodes):
                    return
                session.stored(subscription, int(message.SequenceNumber))
                reader.look()
                if reading.done():
                    break
        except asyncio.CancelledError:
            reading.cancel()
            raise
        finally:
            reader.end()
            await asyncio.wait([reading])
        reading.result()

    async def _resume(self, session: OpcuaSession, server: str, meaning: str) -> Subscription | None:
        """Return the position's subscription, or None."""
        position = self._position
        if position is None or position.server != server:
            return None
        subscription = await session.take_over(position)
        if subscription is not None and position.nodes != meaning:
            await session.drop(position.subscription)
            return None
        return subscription

    async def _begin(
        self, session: OpcuaSession, server: str, meaning: str, nodes: Sequence[FollowedNode]
    ) -> Subscription:
        before, subscription = self._position, await session.subscribe(nodes, self._notifiers())
        if subscription.refused:
            refused = [f"{node.path} ({status})" for node, status in subscription.refused]
            self._log.warning("variables not followed", reason=listed(refused))
        if before is not None:
            changed = "the variables that are selected" if before.nodes != meaning else self._lost or _NEW
            why = changed if before.server == server else "the server was restarted"
            await self._open_holes(session, nodes, why)
        if self._options.events:
            await session.refresh(subscription)
        self._lost = None
        number = 0 if before is None else before.n
        self._position = Position(server, subscription.id, meaning, 0, 0, n=number)
        return subscription

    async def _open_holes(self, session: OpcuaSession, nodes: Sequence[FollowedNode], why: str) -> None:
        """Note that changes are missing since the last values, and name variables without history."""
        tracks = self._times.coverage.tracks
        stored = [handle for handle, key in enumerate(self._keys) if key in tracks]
        await self._learn(session, nodes, stored)
        keys = [self._keys[handle] for handle in stored]
        with_history = [key for key in keys if self._can_fill(key)]
        lost = [key for key in keys if not self._can_fill(key)]
        heard = self._times.coverage.heard
        records = self._times.note(Kind.OPENED, with_history, heard) + self._times.note(
            Kind.LOST, lost, heard
        )
        await self._times.write(self._position.n if self._position is not None else 0, records)
        if with_history:
            self._log.info("history requested", reason=why, variables=len(with_history))
            if self._times.is_behind:
                await self._doubt()
        if lost or not stored or self._options.events:
            self._missed(why)

    def _notifiers(self) -> list[FollowedNode]:
        from agent.leaf.inputs.opcua.notifications import FollowedNode

        return [
            FollowedNode(ident, f"events of {ident}", TopicNames(None, None))
            for ident in self._options.events
        ]

    async def _name_types(self, session: OpcuaSession, message: ua.NotificationMessage) -> None:
        """Learn the names of types of events."""
        from agent.leaf.inputs.opcua.events import received, type_of

        if self._options.events:
            kinds = {kind for fields in received(message) if (kind := type_of(fields)) is not None}
            if unknown := sorted(kinds - self._types.keys()):
                names = await session.type_names(unknown)
                self._types |= {kind: name or kind for kind, name in zip(unknown, names, strict=True)}

    async def _learn(
        self, session: OpcuaSession, nodes: Sequence[FollowedNode], handles: Sequence[int]
    ) -> None:
        """Ask which of these variables have a history."""
        readable = await session.have_history([nodes[handle].id for handle in handles])
        self._readable |= dict(zip([self._keys[handle] for handle in handles], readable, strict=True))

    def _can_fill(self, key: bytes) -> bool:
        track = self._times.coverage.tracks.get(key)
        return self._readable.get(key, False) and track is not None and len(track.holes) < MAX_HOLES

    async def _doubt(self) -> None:
        reason = "was read from an older place, since the newest source times were lost"
        self._log.warning("readings may be twice", reason=f"the history {reason}")
        doubt = Doubt("twice", self.name, "the history", reason, time.time_ns())
        await self._intake.notes.doubt(self._options.class_, doubt)
        self._times.is_behind = False

    async def _next(self, session: OpcuaSession, subscription: Subscription) -> ua.NotificationMessage | None:
        """Return the next unacknowledged or new notification, None when stopping."""
        from agent.leaf.inputs.opcua.limits import OpcuaError
        from agent.leaf.inputs.opcua.notifications import endings

        message = None
        while message is None and subscription.waiting and not self._stopping.is_set():
            message = await unless(self._stopping, session.again(subscription, subscription.waiting.pop(0)))
        if message is None:
            message = await unless(self._stopping, session.next())
        if message is None:
            return None
        if ended := endings(message):
            raise OpcuaError(f"the subscription has ended: {listed(ended)}")
        number, stored = int(message.SequenceNumber), subscription.sequence
        if number not in (stored, stored + 1):
            self._lost = f"notification {number} came after {stored}"
            if stored:
                # The present values of a new subscription show where the gap ends.
                await session.drop(subscription.id)
                raise OpcuaError(self._lost)
            self._missed(self._lost)
        return message

    async def _store(
        self, session: OpcuaSession, message: ua.NotificationMessage, nodes: Sequence[FollowedNode]
    ) -> bool:
        """Store a notification; False when stopping."""
        from agent.leaf.inputs.opcua.notifications import aware, sort

        await self._name_types(session, message)
        sequence, sorted_ = int(message.SequenceNumber), sort(message, nodes, self._types)
        sent = 0.0 if message.PublishTime is None else aware(message.PublishTime).timestamp()
        position = self._position
        assert position is not None, "a subscription has a position"
        done = position.parts if position.sequence == sequence else 0
        over = {item.handle for items in sorted_.pieces for item in items if item.overflowed}
        unknown = [handle for handle in over if self._keys[handle] not in self._readable]
        if unknown:
            await self._learn(session, nodes, unknown)
        for part, items in enumerate(sorted_.pieces[done:], done + 1):
            if not await self._put(nodes, items, Kind.LIVE, sent, sequence=sequence, parts=part):
                return False
        if not sorted_.pieces[done:] and not await self._reach():
            return False
        if sorted_.lacks_events:
            self._missed("the server's queue of events was too short; raise queue")
        if sorted_.waiting:
            keys = [self._keys[handle] for handle in sorted_.waiting]
            await self._note([Record(Kind.ENDED, key, sent) for key in keys])
        return True

    async def _fill(self, nodes: Sequence[FollowedNode], items: Sequence[Item]) -> bool:
        """Store values of the history; False when stopping."""
        from agent.leaf.inputs.opcua.notifications import pieces

        for piece in pieces(items):
            if not await self._put(nodes, piece, Kind.FILLED, 0.0):
                return False
        return True

    async def _put(
        self, nodes: Sequence[FollowedNode], items: Sequence[Item], kind: Kind, sent: float, **place: int
    ) -> bool:
        """Store those of these values that are new; False when stopping."""
        from agent.leaf.inputs.opcua.notifications import built

        async with self._turn:
            position = self._position
            assert position is not None, "a subscription has a position"
            await self._times.tidy(position.n)
            records, new = self._decide(nodes, items, kind, sent)
            if not new and kind is Kind.FILLED:
                await self._times.write(position.n, records)
                return True
            piece = built(new, self._intake.domain)
            is_whole = kind is Kind.LIVE and len(new) == len(items)
            after = structs.replace(
                position,
                n=position.n + 1,
                cut=UNSET if is_whole else digest(piece.payload).hex(),
                **place,
            )
            await self._times.write(after.n, records)
            chunk = Chunk(piece.payload, piece.count, position=after.encode(), letters=piece.letters)
            if not await self._submit(chunk):
                return False
            self._position = after
            if piece.letters:
                self._refuse(piece)
            return True

    def _decide(
        self, nodes: Sequence[FollowedNode], items: Sequence[Item], kind: Kind, sent: float
    ) -> tuple[list[Record], list[Item]]:
        """Apply values to the coverage. Returns its records, and the values that are new."""
        coverage = self._times.coverage
        records: list[Record] = []
        new: list[Item] = []
        overflowed: list[str] = []
        backwards: list[str] = []

        def note(record: Record) -> None:
            records.append(record)
            coverage.note(record)

        for item in items:
            if item.event is not None:
                records.append(Record(Kind.EVENT, item.event, item.time, item.value))
                if coverage.note(records[-1]):
                    new.append(item)
                continue
            key, path = self._keys[item.handle], nodes[item.handle].path
            if kind is Kind.LIVE and coverage.went_back(key, item.time):
                backwards.append(path)
            if item.overflowed and kind is Kind.LIVE:
                if self._can_fill(key):
                    note(Record(Kind.OPENED, key, coverage.heard))
                else:
                    overflowed.append(path)
            record = Record(kind, key, item.time, item.value)
            is_new = coverage.note(record)
            if is_new:
                new.append(item)
            if is_new or kind is Kind.LIVE:
                records.append(record)
        if sent:
            note(Record(Kind.HEARD, b"", sent))
        if backwards:
            self._missed(f"the time of {listed(backwards)} went back")
        if overflowed:
            self._missed(f"the server's queue was too short for {listed(overflowed)}; raise queue")
        return records, new

    async def _note(self, records: list[Record]) -> None:
        """Note records that are no values."""
        async with self._turn:
            assert self._position is not None, "a subscription has a position"
            for record in records:
                self._times.coverage.note(record)
            await self._times.write(self._position.n, records)

    def _refuse(self, piece: NotificationPiece) -> None:
        self._invalid.labels(self.name, "bad_value").inc(len(piece.letters))
        letter = piece.letters[0]
        self._sparse.report(self._log.warning, "value not taken", variable=letter.at, reason=letter.reason)

    def _missed(self, why: str) -> None:
        """Log possibly missing changes, and since when."""
        self._metrics.source_gaps.labels(self.name).inc()
        self._log.warning("changes may be missing", reason=why)
