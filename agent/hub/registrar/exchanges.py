"""The newest exchange with each leaf, by which both sides say that nothing is new
(`agent.contract.checkpoint`). Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from agent.contract import (
    Announce,
    Answer,
    ContractError,
    Repeat,
    new_exchange,
    parse_announce,
    parse_repeat,
)
from agent.contract.checkpoint import MAX_REPEAT
from agent.hub.registrar.records import LeafRecord


@dataclass(frozen=True, slots=True)
class Exchange:
    """An announcement and its answer; `leaf` is the record of the leaf with that answer, None where there is
    none, and `reconnect` the connection to the hub's server over which it was looked up."""

    announce: Announce
    answer: Answer
    leaf: LeafRecord | None = None
    reconnect: int = 0


_UNKNOWN: Final = "what this leaf announced is not known here; announce it in full"
UNKNOWN: Final = Answer(refused=_UNKNOWN, later=True).encode()
"""The answer to a leaf that repeats an exchange that is not known here."""


class UnknownExchangeError(ContractError):
    """A leaf repeats an exchange that is not known here."""


class Exchanges:
    """The exchanges of all leaves."""

    def __init__(self) -> None:
        self._newest: dict[str, Exchange] = {}

    def repeated(self, domain: str, data: bytes) -> Exchange | None:
        """The newest exchange with a leaf if this is its name and nothing else, as both sides write it."""
        newest = self._newest.get(domain)
        if newest is None or len(data) > MAX_REPEAT or Repeat(newest.answer.exchange).encode() != data:
            return None
        return newest

    def is_unknown(self, domain: str, data: bytes) -> bool:
        """Whether this repeats an exchange that is not known here. After a start of the registrar each leaf
        does so once."""
        if len(data) > MAX_REPEAT:
            return False
        try:
            self.read(domain, data)
        except UnknownExchangeError:
            return True
        except ContractError:
            return False  # it is refused when it is read
        return False

    def read(self, domain: str, data: bytes) -> Announce:
        """What a leaf announces. Raises `ContractError`, and `UnknownExchangeError` if it repeats an exchange
        that is not known here."""
        repeat = parse_repeat(data)
        if repeat is None:
            return parse_announce(data, domain)
        newest = self._newest.get(domain)
        if newest is None or newest.answer.exchange != repeat.exchange:
            raise UnknownExchangeError(_UNKNOWN)
        return newest.announce

    def named(
        self, announce: Announce, answer: Answer, leaf: LeafRecord | None = None, reconnect: int = 0
    ) -> Answer:
        """The answer with the name of its exchange, which stays the same where nothing is new."""
        newest = self._newest.get(announce.domain)
        if newest is not None and newest.announce == announce:
            same = replace(answer, exchange=newest.answer.exchange)
            if same == newest.answer:
                self._newest[announce.domain] = Exchange(newest.announce, newest.answer, leaf, reconnect)
                return newest.answer
        answer = replace(answer, exchange=new_exchange())
        self._newest[announce.domain] = Exchange(announce, answer, leaf, reconnect)
        return answer


def encoded(answer: Answer, asked: bytes) -> bytes:
    """The answer as it is sent: as a repeat to a leaf that has just named this exchange."""
    repeat = Repeat(answer.exchange).encode()
    return repeat if answer.exchange and repeat == asked else answer.encode()
