"""Asks the registrar with an announcement, in few bytes while nothing is new
(`agent.contract.checkpoint`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from nats.aio.client import Client
from nats.errors import Error as NatsError

from agent.contract import (
    Announce,
    Answer,
    ContractError,
    Previous,
    Repeat,
    announce_subject,
    parse_answer,
    parse_repeat,
)
from agent.jetstream import request
from agent.leaf.state import StateFile

ANSWER_SECONDS: Final = 5.0
_READING: Final = "; monotonic="
"""What follows it in the text of a clock is another one at each reading."""


@dataclass(frozen=True, slots=True)
class AnnouncedLeaf:
    """What a leaf announces of itself."""

    domain: str
    run: str
    versions: Mapping[str, str]
    every: float
    """Seconds from one announcement to the next."""
    state: StateFile
    ledger: Callable[[str], Previous]
    """Returns the newest counts of a class."""
    seconds_to_loss: Callable[[str], float]
    clock: Callable[[], str]
    is_idle: Callable[[str], bool]
    """Whether the hub may drop the source of a class if it holds all of it."""


class HubExchange:
    """The exchanges of one leaf with the registrar over one connection to the local server."""

    def __init__(self, nc: Client, domain: str) -> None:
        self._nc, self._domain = nc, domain
        self._newest: tuple[Announce, Answer] | None = None
        """The newest exchange that has a name, None if the next announcement is to be in full."""

    async def ask(self, announce: Announce) -> Answer | str:
        """The hub's answer, or why there is none."""
        said = replace(announce, clock=announce.clock.partition(_READING)[0])
        newest, self._newest = self._newest, None
        answer: Answer | str | None = None
        if newest is not None and newest[0] == said:
            answer = await self._request(Repeat(newest[1].exchange).encode(), newest[1])
        if answer is None or (isinstance(answer, Answer) and answer.refused is not None):
            # A hub that refuses a repeat may only not know what is repeated.
            answer = await self._request(announce.encode(), None)
        if isinstance(answer, str):
            return answer
        if answer.later:
            return f"not now: {answer.refused}"
        if answer.exchange:
            self._newest = said, answer
        return answer

    async def _request(self, data: bytes, known: Answer | None) -> Answer | str:
        """The hub's answer to a record, or why there is none; `known` is the answer that it may repeat."""
        try:
            reply = await request(self._nc, announce_subject(self._domain), data, ANSWER_SECONDS)
            repeat = parse_repeat(reply.data)
            if repeat is not None and known is not None and repeat.exchange == known.exchange:
                return known
            return parse_answer(reply.data)
        except (NatsError, OSError, TimeoutError):
            return "the hub does not answer"
        except ContractError as error:
            return f"the hub's answer cannot be read: {error}"
