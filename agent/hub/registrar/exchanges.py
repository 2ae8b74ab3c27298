"""The newest exchange with each leaf, by which both sides say that nothing is new
(`agent.contract.checkpoint`). A repeat is answered like the announcement that it stands for: nothing is
looked at less often for it. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from agent.contract import Announce, Answer, Repeat, new_exchange, parse_announce, parse_repeat


@dataclass(frozen=True, slots=True)
class _Exchange:
    announce: Announce
    answer: Answer


class UnknownExchangeError(Exception):
    """A leaf repeats an exchange that is not known here: it shall announce in full."""

    def answer(self) -> Answer:
        """The answer to the leaf."""
        return Answer(refused=f"what {self} announced is not known here; announce it in full", later=True)


class Exchanges:
    """The exchanges of all leaves."""

    def __init__(self) -> None:
        self._newest: dict[str, _Exchange] = {}

    def read(self, domain: str, data: bytes) -> Announce:
        """What a leaf announces. Raises `ContractError`, and `UnknownExchangeError` if it repeats an exchange
        that is not known here."""
        repeat = parse_repeat(data)
        if repeat is None:
            return parse_announce(data, domain)
        newest = self._newest.get(domain)
        if newest is None or newest.answer.exchange != repeat.exchange:
            raise UnknownExchangeError(domain)
        return newest.announce

    def named(self, announce: Announce, answer: Answer) -> Answer:
        """The answer with the name of its exchange, which stays the same where nothing is new."""
        newest = self._newest.get(announce.domain)
        if newest is not None and newest.announce == announce:
            same = replace(answer, exchange=newest.answer.exchange)
            if same == newest.answer:
                return same
        answer = replace(answer, exchange=new_exchange())
        self._newest[announce.domain] = _Exchange(announce, answer)
        return answer


def encoded(answer: Answer, asked: bytes) -> bytes:
    """The answer as it is sent: as a repeat to a leaf that has just named this exchange."""
    repeat = Repeat(answer.exchange).encode()
    return repeat if answer.exchange and repeat == asked else answer.encode()
