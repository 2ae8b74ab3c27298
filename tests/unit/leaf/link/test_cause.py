"""Which cause of a link that is down is named, of several addresses of the hub."""

from __future__ import annotations

from agent.leaf.link.cause import cause_of
from agent.server.dialling import Greeted, Nowhere
from agent.server.joining import CLIENT_PORT, SILENCE, UNKNOWN_KEY, Dialled, LeafRefused, LetIn

AWAY = Dialled("nats-leaf://a:7422", Nowhere("it cannot be reached (Connection refused)", away=True))
UNTRUSTED = Dialled(
    "tls://b:7422", Nowhere("this leaf does not trust the hub's certificate: x", remedy="renew it")
)
GREETED = Greeted.__new__(Greeted)


def refused(why: str) -> Dialled:
    return Dialled("nats-leaf://u:secret@c:7422", GREETED, LeafRefused(why))


def test_a_hub_that_is_away_needs_nobody_and_a_setting_needs_a_person() -> None:
    cause = cause_of([AWAY], "edge-1")
    assert cause is not None
    assert cause.sentence == "nats-leaf://a:7422: it cannot be reached (Connection refused)"
    assert not cause.person
    for why, words in (
        (UNKNOWN_KEY, "it refuses the key of edge-1 (Authorization Violation), let it in"),
        (CLIENT_PORT, "it is the port for clients of the hub's server, write the port of leaf_listen"),
    ):
        cause = cause_of([refused(why)], "edge-1")
        assert cause is not None
        assert words in cause.sentence
        assert "secret" not in cause.sentence
        assert cause.person
    silent = cause_of([refused(SILENCE)], "edge-1")
    assert silent is not None
    assert not silent.person


def test_an_address_that_answers_comes_first_and_one_that_lets_in_is_no_cause() -> None:
    cause = cause_of([AWAY, UNTRUSTED], "edge-1")
    assert cause is not None
    assert cause.sentence.startswith(
        "tls://b:7422: this leaf does not trust the hub's certificate: x, renew it; nats"
    )
    assert cause.person
    assert cause_of([AWAY, Dialled("nats-leaf://d:7422", GREETED, LetIn({}))], "edge-1") is None
    assert cause_of([], "edge-1") is None
