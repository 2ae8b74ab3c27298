"""What a broker sends again is told from what it sends for the first time."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.leaf.inputs.mqtt.redelivery import (
    SECONDS,
    TRAVELLING,
    MessageIdentity,
    Redelivery,
    identity_of,
)
from agent.leaf.intake import MAX_POSITION

MARK = "0123abcd"
IDENTS = st.lists(
    st.builds(MessageIdentity, st.integers(1, 65_535), st.integers(0, 2**80 - 1)),
    unique_by=lambda one: one.packet_id,
    max_size=TRAVELLING,
)


def test_a_message_is_known_by_packet_id_and_content() -> None:
    repeats = Redelivery()
    repeats.store(identity_of(7, "a", b"1"), 0.0)
    assert repeats.is_stored(identity_of(7, "a", b"1"))
    for other in (identity_of(8, "a", b"1"), identity_of(7, "b", b"1"), identity_of(7, "a", b"2")):
        assert not repeats.is_stored(other)


@given(IDENTS, IDENTS)
def test_a_position_tells_the_next_run_what_is_stored(
    known: list[MessageIdentity], coming: list[MessageIdentity]
) -> None:
    repeats, after, between = Redelivery(), Redelivery(), Redelivery()
    for one in known:
        repeats.store(one, 0.0)
    position = repeats.position(MARK, coming, 1.0)
    assert len(position) <= MAX_POSITION
    assert position.isascii()

    assert after.restore(position, 0.0) == coming
    assert all(after.is_stored(one) for one in coming)
    newest = {one.packet_id: one for one in [*known, *coming]}
    if len(known) + len(coming) <= TRAVELLING:
        assert all(after.is_stored(one) for one in newest.values())

    assert between.restore(position, 0.0, begun=True) == coming
    assert not any(between.is_stored(one) for one in coming if one not in known)


def test_what_was_acknowledged_long_ago_travels_no_more_until_a_connection_is_new() -> None:
    repeats = Redelivery()
    repeats.heard(MessageIdentity(7, 1))
    repeats.store(MessageIdentity(7, 1), 0.0)
    assert "7:1" in repeats.position(MARK, [], SECONDS - 1)
    assert "7:1" not in repeats.position(MARK, [], SECONDS + 1)
    repeats.connected(100.0, resumed=True)
    assert "7:1" in repeats.position(MARK, [], 101.0)
    repeats.connected(100.0, resumed=False)
    assert not repeats.is_stored(MessageIdentity(7, 1))


def test_a_broker_that_gives_packet_ids_anew_at_once_is_not_trusted_with_them() -> None:
    repeats = Redelivery()
    for packet_id in (1, 2):
        repeats.note(MessageIdentity(packet_id, 5))
        repeats.store(MessageIdentity(packet_id, 5), 0.0)
    assert repeats.is_stored(MessageIdentity(1, 5))
    repeats.note(MessageIdentity(1, 5))
    assert not repeats.is_stored(MessageIdentity(1, 5))
    after = Redelivery()
    after.restore(repeats.position(MARK, [], 1.0), 0.0)
    assert not after.is_stored(MessageIdentity(2, 5))


@pytest.mark.parametrize(
    "position", ["", "1", "[1, 2]", "1 0123abcd c 7:1", "3 0123abcd c |", "1 x c |", "2 0123abcd u |"]
)
def test_a_position_of_another_kind_is_refused(position: str) -> None:
    with pytest.raises(ValueError, match="none of an mqtt input"):
        Redelivery().restore(position, 0.0)


def test_the_numbers_of_rabbitmq_are_not_taken_for_those_of_the_connection_before() -> None:
    """As recorded from RabbitMQ 3.10: 30 messages came, 24 were acknowledged; over the next connection the
    other six come as 1 to 6, marked as repeats. Their payloads are those of the first six."""
    repeats = Redelivery()
    repeats.connected(0.0, resumed=False)
    for number in range(1, 31):
        one = identity_of(number, "plant/p/n", b"%d" % ((number - 1) % 3))
        repeats.heard(one)
        repeats.note(one)
        if number <= 24:
            repeats.store(one, 0.0)
            repeats.acknowledged()
    after = Redelivery()
    after.restore(repeats.position(MARK, [], 0.0), 0.0)
    for known in (repeats, after):
        known.connected(1.0, resumed=True)
        for number, payload in enumerate((b"0", b"1", b"2") * 2, 1):
            again = identity_of(number, "plant/p/n", payload)
            known.heard(again)
            assert not known.is_stored(again)


@dataclass
class Broker:
    """A broker, the connection to it, and an agent that stores what it sends. `restarts` numbers each
    connection from 1. A message is its number; payloads repeat."""

    restarts: bool
    draws: random.Random
    repeats: Redelivery = field(default_factory=Redelivery)
    next_id: int = 1
    published: int = 0
    waiting: list[int] = field(default_factory=list)
    sent: list[tuple[int, int, bool]] = field(default_factory=list)
    received: int = 0
    stored: list[int] = field(default_factory=list)
    position: str | None = None

    def __post_init__(self) -> None:
        self.next_id = self.draws.choice((1, 1, 65_500))
        self.repeats.connected(0.0, resumed=False)

    def publish(self) -> None:
        self.published += 1
        self.waiting.append(self.published)

    def ident(self, packet_id: int, message: int) -> MessageIdentity:
        return identity_of(packet_id, "plant/p/n", b"%d" % (message * message % 3))

    def send(self, message: int, packet_id: int, again: bool) -> None:
        self.sent.append((packet_id, message, again))

    def send_more(self) -> None:
        """Send what waits, as far as the window goes: the agent may not get it over this connection."""
        while self.waiting and len(self.sent) < 10:
            self.send(self.waiting.pop(0), self.next_id, again=False)
            self.next_id = self.next_id % 65_535 + 1

    def take(self, *, answers: bool) -> None:
        """The agent takes the next message, stores it unless it knows it, and acknowledges it; the broker
        hears of that or not."""
        if self.received == len(self.sent):
            self.send_more()
        if self.received == len(self.sent):
            return
        packet_id, message, again = self.sent[self.received]
        self.received += 1
        one = self.ident(packet_id, message)
        self.repeats.heard(one)
        if not (again and self.repeats.is_stored(one)):
            if not again:
                self.repeats.note(one)
            self.position = self.repeats.position(MARK, [one], 0.0)
            self.stored.append(message)
            self.repeats.store(one, 0.0)
        self.repeats.acknowledged()
        if answers:
            del self.sent[: self.received]
            self.received = 0

    def connect(self, *, killed: bool) -> None:
        """The connection broke, and is made again; the agent may have been killed."""
        if killed:
            self.repeats = Redelivery()
            if self.position is not None:
                self.repeats.restore(self.position, 0.0)
        self.repeats.connected(0.0, resumed=True)
        self.received = 0
        if self.restarts:
            self.next_id = 1
        again, self.sent = self.sent, []
        for packet_id, message, _ in again:
            if self.restarts:
                packet_id, self.next_id = self.next_id, self.next_id + 1
            self.send(message, packet_id, again=True)

    def ends(self) -> None:
        """All that is left comes, and is answered."""
        self.connect(killed=False)
        while self.waiting or self.received < len(self.sent):
            self.take(answers=True)


@settings(deadline=None, max_examples=300)
@given(st.integers(0, 2**32), st.booleans(), st.booleans())
def test_no_message_is_taken_for_a_stored_one_and_where_ids_go_on_none_is_stored_twice(
    seed: int, restarts: bool, begun: bool
) -> None:
    draws = random.Random(seed)
    broker = Broker(restarts, draws)
    for _ in range(5 if begun else 0):  # acknowledged, so that no connection begins at the session's first
        broker.publish()
        broker.take(answers=True)
    for _ in range(80):
        what = draws.random()
        if what < 0.4:
            broker.publish()
        elif what < 0.9:
            broker.take(answers=draws.random() < 0.6)
        else:
            broker.connect(killed=draws.random() < 0.5)
    broker.ends()
    assert set(broker.stored) == set(range(1, broker.published + 1)), "none is taken for a stored one"
    if begun and not restarts:
        assert len(broker.stored) == broker.published, "none is stored twice"


def test_topic_and_payload_are_told_apart_wherever_one_ends() -> None:
    one, other = identity_of(7, "plant/p/n1", b"0"), identity_of(7, "plant/p/n", b"10")
    assert one != other
    repeats = Redelivery()
    repeats.store(one, 0.0)
    assert not repeats.is_stored(other)
