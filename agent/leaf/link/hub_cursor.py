"""Asks the hub up to where it holds everything while a submission waits for it. An announcement shows the
same every ten seconds; this request is small, and sent at a bounded rate however many wait."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Final

from nats.aio.client import Client
from nats.errors import Error as NatsError

from agent import contract
from agent.base.wait import Backoff
from agent.contract import H_MESSAGE_ID, Checkpoint, ContractError, CursorAnswer, CursorRequest
from agent.jetstream import JetStream, JetStreamError, request
from agent.leaf.acks import HubAckWaiters
from agent.leaf.state_file import StateFile

SOONEST: Final = 0.02
"""Seconds between two requests while answers end waits; otherwise the pause doubles."""
LONGEST: Final = 1.0
_ANSWER_SECONDS: Final = 2.0


class HubCursorPoller:
    """Asks over the current connection. `agreed(cls)` returns the epoch of a class if the link is up and both
    sides agree: only then a position at the hub proves that it holds all before it."""

    def __init__(
        self,
        domain: str,
        run: str,
        state: StateFile,
        waits: HubAckWaiters,
        agreed: Callable[[str], str | None],
        announce: Callable[[], None],
    ) -> None:
        self._domain, self._run, self._state = domain, run, state
        self._waits, self._agreed, self._announce = waits, agreed, announce
        self._over: tuple[Client, JetStream] | None = None

    @contextlib.contextmanager
    def connected(self, nc: Client, js: JetStream) -> Iterator[None]:
        """Ask over this connection as long as the scope lasts."""
        self._over = (nc, js)
        try:
            yield
        finally:
            self._over = None

    async def run(self) -> None:
        """Ask while a submission waits, until cancelled."""
        while True:
            await self._waits.wanted.wait()
            backoff = Backoff(SOONEST, LONGEST)
            while self._waits.wanted.is_set():
                if await self._once():
                    backoff.reset()
                await asyncio.sleep(backoff.next())

    async def _once(self) -> bool:
        """Ask, and end the waits that the answer ends; returns whether it ended any."""
        epochs = {cls: epoch for cls in self._waits.classes() if (epoch := self._agreed(cls)) is not None}
        if self._over is None or not epochs:
            return False
        nc, js = self._over
        answer = await self._ask(nc, epochs)
        if answer is None:
            # A hub that does not know this request, or does not permit it, still takes announcements.
            self._announce()
            return False
        ended = False
        for cls, position in answer.held.items():
            if epochs.get(cls) == self._agreed(cls) and await self._is_ours(js, cls, position):
                ended |= self._waits.reached(cls, position.leaf_seq)
        return ended

    async def _ask(self, nc: Client, epochs: dict[str, str]) -> CursorAnswer | None:
        cursor_request = CursorRequest(self._state.current.machine, self._run, epochs)
        try:
            reply = await request(
                nc, contract.cursor_subject(self._domain), cursor_request.encode(), _ANSWER_SECONDS
            )
            answer = contract.parse_cursor_answer(reply.data)
        except (NatsError, OSError, TimeoutError, ContractError):
            return None
        return answer if answer.refused is None else None

    async def _is_ours(self, js: JetStream, cls: str, position: Checkpoint) -> bool:
        message_id = self._waits.id_at(cls, position.leaf_seq)
        if message_id is None:
            try:
                stream = contract.leaf_stream(self._domain, cls)
                message = await js.get_message(stream, seq=position.leaf_seq)
            except JetStreamError:
                return False
            message_id = None if message is None else message.headers.get(H_MESSAGE_ID)
        return message_id == position.message_id
