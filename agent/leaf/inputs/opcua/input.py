"""Follows variables of an OPC UA server: the input `opcua`.

A notification is acknowledged once stored, and its place is stored with it. A restarted agent resumes the
subscription, which the server keeps for `keep`, without loss or repeats. A restarted server, or a dropped
subscription, begins with present values; the log names the gap.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import UNSET, structs

from agent.base.logs import listed
from agent.base.metrics import Metrics
from agent.base.wait import unless
from agent.leaf.inputs.opcua import OpcuaOptions, Position, file_problems, parse_position, problems
from agent.leaf.inputs.shared import NO_SERVER, LocalServer
from agent.leaf.inputs.shared.positioned_input import SessionInput
from agent.leaf.intake import Chunk, Intake

if TYPE_CHECKING:
    from asyncua import ua

    from agent.leaf.inputs.opcua.notifications import Change, FollowedNode, NotificationPiece
    from agent.leaf.inputs.opcua.session import OpcuaSession, Subscription

_NEW: Final = "the server has no earlier subscription of this agent"


class OpcuaInput(SessionInput[OpcuaOptions]):
    _source = "server"
    _connected = "the server reports"
    _stored = "values are stored again"

    def __init__(self, options: OpcuaOptions, metrics: Metrics, server: LocalServer = NO_SERVER) -> None:
        super().__init__(options, metrics, server, options.url)
        self._position: Position | None = None
        self._changes: dict[str, Change] = {}
        """Last stored change per variable, since new subscriptions repeat it."""

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
                self._position = structs.replace(begun, parts=begun.parts - 1)
        except ValueError as error:
            self._log.warning("present values stored again", reason=str(error))

    async def _follow(self, session: OpcuaSession) -> None:
        """Store reports from the last position until the session ends."""
        from agent.leaf.inputs.opcua.limits import OpcuaError
        from agent.leaf.inputs.opcua.nodes import find
        from agent.leaf.inputs.opcua.notifications import digest

        nodes, lacking = await find(session, self._options.nodes)
        if lacking:
            self._log.warning(
                "variables missing",
                reason=listed(lacking, by="; "),
                effect="looked for at the next connection",
            )
        if not nodes:
            raise OpcuaError("it has none of the variables that are selected")
        server, meaning = await session.server(), digest(nodes)
        subscription = await self._resume(session, server, meaning)
        known: dict[int, Change] | None = None
        if subscription is None:
            known = {
                handle: self._changes[node.id]
                for handle, node in enumerate(nodes)
                if node.id in self._changes
            }
            subscription = await self._begin(session, server, meaning, nodes)
        self._flows()
        while not self._stopping.is_set():
            message = await self._next(session, subscription)
            if message is None or not await self._store(message, nodes, known):
                return
            session.stored(subscription, int(message.SequenceNumber))
            known = None

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
        before, subscription = self._position, await session.subscribe(nodes)
        if subscription.refused:
            refused = [f"{node.path} ({status})" for node, status in subscription.refused]
            self._log.warning("variables not followed", reason=listed(refused))
        if before is not None:
            changed = "the variables that are selected" if before.nodes != meaning else _NEW
            why = changed if before.server == server else "the server was restarted"
            self._missed(why)
        self._position = Position(server, subscription.id, meaning, 0, 0)
        return subscription

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
            self._missed(f"notification {number} came after {stored}")
        return message

    async def _store(
        self, message: ua.NotificationMessage, nodes: Sequence[FollowedNode], known: dict[int, Change] | None
    ) -> bool:
        """Store a notification; False when stopping."""
        from agent.leaf.inputs.opcua.notifications import sort

        position, sequence = self._position, int(message.SequenceNumber)
        assert position is not None, "a subscription has a position"
        parts = sort(message, nodes, self._intake.domain, known)
        done = position.parts if position.sequence == sequence else 0
        for part, piece in enumerate(parts.pieces[done:], done + 1):
            cut = UNSET if piece.whole else True
            after = structs.replace(position, sequence=sequence, parts=part, cut=cut)
            chunk = Chunk(piece.payload, piece.count, position=after.encode(), letters=piece.letters)
            if not await self._submit(chunk):
                return False
            self._position = position = after
            if piece.letters:
                self._refuse(piece)
        if not parts.pieces[done:] and not await self._reach():
            return False
        self._changes |= {nodes[handle].id: change for handle, change in parts.newest.items()}
        if parts.overflowed:
            self._missed(f"the server's queue was too short for {listed(parts.overflowed)}; raise queue")
        return True

    def _refuse(self, piece: NotificationPiece) -> None:
        self._invalid.labels(self.name, "bad_value").inc(len(piece.letters))
        letter = piece.letters[0]
        self._sparse.report(self._log.warning, "value not taken", variable=letter.at, reason=letter.reason)

    def _missed(self, why: str) -> None:
        """Log possibly missing changes, and since when."""
        self._metrics.source_gaps.labels(self.name).inc()
        self._log.warning("changes may be missing", reason=why)
