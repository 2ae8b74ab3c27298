"""When leaf and hub may say that nothing is new."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent import contract
from agent.contract import Announce, Answer, ClassAnswer, ContractError, Repeat, new_exchange, new_run
from agent.hub.registrar.announce_service import MAX_ANNOUNCE
from agent.hub.registrar.exchanges import UNKNOWN, Exchanges, UnknownExchangeError, encoded

ANNOUNCE = Announce("edge-1", "m", new_run(), {}, {})
ANSWER = Answer({"normal": ClassAnswer("TELEMETRY_0", 7, "id", "flowing")})


def repeat_of(answer: Answer) -> bytes:
    return Repeat(answer.exchange).encode()


def test_a_repeat_stands_for_what_was_announced_in_that_exchange() -> None:
    exchanges = Exchanges()
    assert exchanges.read("edge-1", ANNOUNCE.encode()) == ANNOUNCE
    answer = exchanges.named(ANNOUNCE, ANSWER)
    assert exchanges.read("edge-1", repeat_of(answer)) == ANNOUNCE


def test_an_answer_that_is_the_same_is_a_repeat_and_one_with_news_is_in_full() -> None:
    exchanges = Exchanges()
    answer = exchanges.named(ANNOUNCE, ANSWER)
    asked = repeat_of(answer)
    same = exchanges.named(ANNOUNCE, ANSWER)
    assert same == answer
    assert encoded(same, asked) == asked
    news = exchanges.named(ANNOUNCE, replace(ANSWER, refused=None, classes={}))
    assert encoded(news, asked) == news.encode()


def test_who_announces_in_full_is_answered_in_full() -> None:
    exchanges = Exchanges()
    exchanges.named(ANNOUNCE, ANSWER)
    answer = exchanges.named(ANNOUNCE, ANSWER)
    assert encoded(answer, ANNOUNCE.encode()) == answer.encode()


def test_an_answer_that_was_lost_on_its_way_is_not_taken_for_known() -> None:
    exchanges = Exchanges()
    first = exchanges.named(ANNOUNCE, ANSWER)
    exchanges.named(ANNOUNCE, replace(ANSWER, classes={}))
    with pytest.raises(UnknownExchangeError):
        exchanges.read("edge-1", repeat_of(first))


@pytest.mark.parametrize("domain", ["edge-1", "edge-2"])
def test_an_exchange_of_another_registrar_or_leaf_is_unknown(domain: str) -> None:
    exchanges = Exchanges()
    exchanges.named(ANNOUNCE, ANSWER)
    with pytest.raises(UnknownExchangeError):
        exchanges.read(domain, Repeat(new_exchange()).encode())


def test_what_is_not_a_repeat_or_is_known_is_not_called_unknown() -> None:
    exchanges = Exchanges()
    answer = exchanges.named(ANNOUNCE, ANSWER)
    for data in (repeat_of(answer), ANNOUNCE.encode(), b"", b"{}", b'{"v":1,"same":1}'):
        assert not exchanges.is_unknown("edge-1", data), data
    assert exchanges.is_unknown("edge-1", Repeat(new_exchange()).encode())


def test_a_leaf_that_is_not_known_is_to_announce_again_at_once_and_never_to_repeat_that_answer() -> None:
    answer = contract.parse_answer(UNKNOWN)
    assert answer.refused is not None
    assert answer.later
    assert not answer.exchange


def test_an_answer_without_a_name_is_sent_in_full() -> None:
    refused = Answer(refused="no")
    assert encoded(refused, repeat_of(refused)) == refused.encode()


@pytest.mark.parametrize(
    "data", [b'{"v":1,"same":1}', b'{"v":1,"same":"A"}', b'{"v":2,"same":"0123456789ab"}']
)
def test_a_repeat_that_cannot_be_read_is_refused(data: bytes) -> None:
    with pytest.raises(ContractError):
        Exchanges().read("edge-1", data)


def test_a_leaf_of_as_many_classes_as_may_be_declared_announces_less_than_the_hub_takes() -> None:
    most, domain, run = 2**63 - 1, "d" * 32, new_run()
    readings = contract.Readings(*[most] * len(contract.Readings.__slots__))
    state = contract.ClassState(
        epoch=contract.new_epoch(),
        created="2026-11-21T00:00:00.123456789Z",
        first=most,
        last=most,
        confirmed=most,
        bytes=most,
        ledger=contract.Previous(run, most, readings, closed=False),
        seconds_to_loss=12_345.678901234567,
        acked=most,
    )
    names = [f"{number:016d}" for number in range(contract.MAX_CLASSES)]
    positions = {
        cls: contract.Checkpoint(most, f"{domain}/{cls}/{run}/{most}", contract.aggregate(9999), most)
        for cls in names
    }
    announce = Announce(domain, "m" * 32, run, {}, dict.fromkeys(names, state), positions)
    assert len(announce.encode()) < MAX_ANNOUNCE - 8 * 1024
