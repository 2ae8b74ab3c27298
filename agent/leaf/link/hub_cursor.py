"""Asking the hub how far it is while somebody waits for it. An announcement tells the same and is made every
ten seconds; this question is small, and asked at a bounded rate however many wait."""

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
from agent.leaf.hub_acks import HubAckWaiters
from agent.leaf.state import StateFile

SOONEST: Final = 0.02
"""Seconds between two questions while answers let somebody go; otherwise the pause doubles."""
LONGEST: Final = 1.0
_ANSWER_SECONDS: Final = 2.0


class HubCursorPoller:
    """Asks over the current connection. `agreed(cls)` is the epoch of a class if the link is up and both
    sides were found to agree on it: only then a place at the hub says that it holds all before it."""

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
        """Ask as long as somebody waits, until cancelled."""
        while True:
            await self._waits.wanted.wait()
            backoff = Backoff(SOONEST, LONGEST)
            while self._waits.wanted.is_set():
                if await self._once():
                    backoff.reset()
                await asyncio.sleep(backoff.next())

    async def _once(self) -> bool:
        """Ask, and let go whom the answer allows to; whether it did anybody."""
        epochs = {cls: epoch for cls in self._waits.classes() if (epoch := self._agreed(cls)) is not None}
        if self._over is None or not epochs:
            return False
        nc, js = self._over
        answer = await self._ask(nc, epochs)
        if answer is None:
            # A hub that does not know the question, or does not let it pass, still takes announcements.
            self._announce()
            return False
        let_go = False
        for cls, place in answer.held.items():
            if epochs.get(cls) == self._agreed(cls) and await self._is_ours(js, cls, place):
                let_go |= self._waits.reached(cls, place.leaf_seq)
        return let_go

    async def _ask(self, nc: Client, epochs: dict[str, str]) -> CursorAnswer | None:
        question = CursorRequest(self._state.current.machine, self._run, epochs)
        try:
            reply = await request(
                nc, contract.cursor_subject(self._domain), question.encode(), _ANSWER_SECONDS
            )
            answer = contract.parse_cursor_answer(reply.data)
        except (NatsError, OSError, TimeoutError, ContractError):
            return None
        return answer if answer.refused is None else None

    async def _is_ours(self, js: JetStream, cls: str, place: Checkpoint) -> bool:
        known = self._waits.id_at(cls, place.leaf_seq)
        if known is None:
            try:
                stream = contract.leaf_stream(self._domain, cls)
                message = await js.get_message(stream, seq=place.leaf_seq)
            except JetStreamError:
                return False
            known = None if message is None else message.headers.get(H_MESSAGE_ID)
        return known == place.message_id
