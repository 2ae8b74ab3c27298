"""A relayed session delivers exactly the bytes that it was given, over any breaks, or it ends."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from itertools import permutations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from agent.server.resume.stream import (
    FIRST_HELD,
    FRAME_BYTES,
    HELLO_BYTES,
    MAX_FRAME,
    MAX_HASTY,
    MAX_HELD,
    PATIENCE,
    Answer,
    Budget,
    ByteStream,
    Hello,
    ProtocolError,
    Verdict,
)

KEY = bytes(range(32))
SECRET = bytes(range(32, 64))


def stream(budget: int = 2**30) -> ByteStream:
    return ByteStream(Budget(budget))


def pair() -> tuple[ByteStream, ByteStream]:
    return stream(), stream()


class Reader:
    """Reads a connection that may end anywhere, as a session does."""

    def __init__(self, end: ByteStream) -> None:
        self._end, self._header, self._left = end, b"", 0

    def feed(self, data: bytes, now: float = 0.0) -> bytes:
        """Return the bytes for the local server."""
        found = b""
        while data:
            if self._left:
                part, data = data[: self._left], data[self._left :]
                self._left -= len(part)
                found += self._end.accept(part, now)
                continue
            wanted = FRAME_BYTES - len(self._header)
            self._header, data = self._header + data[:wanted], data[wanted:]
            if len(self._header) == FRAME_BYTES:
                self._left, self._header = self._end.read(self._header, now), b""
        return found


def fed(end: ByteStream, data: bytes, now: float = 0.0) -> bytes:
    return Reader(end).feed(data, now)


def all_of(one: ByteStream, now: float = 0.0) -> bytes:
    """Everything that it sends now."""
    return b"".join(iter(lambda: one.take(now), b""))


ORDERS = [list(order) for dials in (1, 2, 3) for order in permutations(range(dials))]


class Lines(RuleBasedStateMachine):
    """Two ends of a session, connections that break anywhere and arrive in any order, and restarts."""

    @initialize()
    def begin(self) -> None:
        """A session with its first connection."""
        self.leaf, self.hub = pair()
        self.newest: int | None = None
        self.number = 0
        self.given, self.got = ({True: b"", False: b""} for _ in range(2))
        self.connect([0], 0, answered=True)

    def end_of(self, up: bool) -> ByteStream:
        return self.leaf if up else self.hub

    @rule(
        up=st.booleans(), size=st.integers(1, 3 * FIRST_HELD), frames=st.integers(0, 3), part=st.floats(0, 1)
    )
    def carry(self, up: bool, size: int, frames: int, part: float) -> None:
        """A server writes; some frames are sent, and a part of all that is on its way arrives."""
        end, given = self.end_of(up), self.given
        data = random.Random(len(given[up])).randbytes(min(size, max(0, end.room())))
        end.write(data)
        given[up] += data
        if up or self.connected:
            self.on_way[up] += b"".join(end.take(0.0) for _ in range(frames))
        if self.connected:
            self.arrive(up, int(len(self.on_way[up]) * part))

    def arrive(self, up: bool, size: int) -> None:
        arrived, self.on_way[up] = self.on_way[up][:size], self.on_way[up][size:]
        self.got[up] += self.readers[up].feed(arrived)

    @rule(order=st.sampled_from(ORDERS), frames=st.integers(0, 3), answered=st.booleans())
    def reconnect(self, order: Sequence[int], frames: int, answered: bool) -> None:
        """The line breaks, and the leaf dials until a connection holds, or breaks before the answer."""
        self.connect(order, frames, answered)

    @rule(at=st.integers(0, 9))
    def hub_restarts(self, at: int) -> None:
        """A relay that is killed forgets its sessions: this session ends, and the servers link anew."""
        if at == 0:
            self.newest, self.hub = None, stream()
            self.connect([0], 0, answered=True)
            assert not self.connected
            self.begin()

    def connect(self, order: Sequence[int], frames: int, answered: bool) -> None:
        """Connections arrive at the hub in this order; the leaf sends frames behind its last greeting."""
        self.connected, self.on_way = False, {True: b"", False: b""}
        self.readers = {True: Reader(self.hub), False: Reader(self.leaf)}
        first, self.number = self.number, self.number + len(order)
        self.leaf.begin(0.0)
        for nth in order:
            hello = Hello.decode(Hello(KEY, first + nth, self.leaf.received).encode(SECRET))
            verdict = hello.judge(self.newest, SECRET)
            if self.newest is None and hello.number:
                assert verdict is Verdict.UNKNOWN
                return
            if self.newest is not None and hello.number <= self.newest:
                assert verdict is Verdict.STALE
                continue
            assert verdict is Verdict.RESUMED
            self.newest = hello.number
            self.hub.begin(0.0)
            self.hub.resume(hello.received)
            answer = Answer.decode(Answer(verdict, self.hub.received).encode())
            if nth < len(order) - 1:
                self.hub.take(0.0)  # sent to a connection that the leaf has given up
                continue
            if hello.number:
                self.on_way[True] = b"".join(self.leaf.take(0.0) for _ in range(frames))
            if answered:
                self.leaf.resume(answer.received)
                self.connected = True

    @invariant()
    def exactly_the_bytes(self) -> None:
        for up in (True, False):
            assert self.given[up].startswith(self.got[up])
            assert self.end_of(up).room() <= MAX_HELD

    def teardown(self) -> None:
        """Over a line that stays, everything arrives."""
        self.connect([0], 2, answered=True)
        for _ in range(2):
            for up in (True, False):
                self.on_way[up] += all_of(self.end_of(up))
                self.arrive(up, len(self.on_way[up]))
        assert self.got == self.given
        assert not self.leaf.waits
        assert not self.hub.waits


TestLines = Lines.TestCase
TestLines.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize(
    "frame",
    [(0, 0, 1), (2**32 - 1, 1, 0), (1, 1, 0), (MAX_FRAME + 1, 0, 0), (2**32 - 2, 0, 0)],
    ids=["acknowledges-more", "end-elsewhere", "gap", "long", "longest"],
)
def test_a_frame_that_does_not_follow_ends_the_session(frame: tuple[int, int, int]) -> None:
    with pytest.raises(ProtocolError):
        stream().read(struct.pack(">IQQ", *frame), 0.0)


def test_an_end_that_has_more_than_was_sent_ends_the_session() -> None:
    one = stream()
    one.write(b"abc")
    with pytest.raises(ProtocolError):
        one.resume(1)


def test_an_end_that_has_less_than_it_acknowledged_ends_the_session() -> None:
    one, other = pair()
    one.write(b"abc")
    fed(other, one.take(0.0))
    fed(one, other.take(0.0))
    with pytest.raises(ProtocolError):
        one.resume(2)


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + bytes(HELLO_BYTES - 27), Hello(KEY, 0, 1).encode(SECRET)],
)
def test_a_greeting_of_another_program_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        Hello.decode(data)


def judged(number: int, newest: int | None, secret: bytes = SECRET) -> Verdict:
    return Hello.decode(Hello(KEY, number, 0).encode(secret)).judge(newest, SECRET)


def test_a_session_that_the_hub_does_not_know_begins_only_with_its_first_connection() -> None:
    assert judged(0, None) is Verdict.RESUMED
    assert judged(1, None) is Verdict.UNKNOWN
    assert judged(1, 1) is Verdict.STALE
    assert judged(2, 1) is Verdict.RESUMED


def test_whoever_saw_a_session_cannot_continue_it_without_its_secret() -> None:
    assert judged(2, 1, b"guessed") is Verdict.UNKNOWN
    seen = Hello.decode(Hello(KEY, 1, 0).encode(SECRET))
    forged = Hello(KEY, 9, 0, seen.mac)
    assert forged.judge(1, SECRET) is Verdict.UNKNOWN


def test_bytes_that_are_sent_again_before_the_answer_arrive_once() -> None:
    one, other = pair()
    one.write(b"abcdef")
    assert fed(other, one.take(0.0)[:-2]) == b"abcd"
    one.begin(1.0)
    assert fed(other, one.take(1.0)) == b"ef"
    assert one.resume(4) == 2
    assert one.take(1.0) == b""
    fed(one, other.take(1.0))
    assert not one.waits


def test_no_more_than_the_first_window_of_tcp_is_sent_before_the_answer() -> None:
    one = stream()
    one.write(bytes(FIRST_HELD))
    one.ended = True
    one.begin(0.0)
    assert len(all_of(one)) == FRAME_BYTES + MAX_HASTY
    one.resume(0)
    assert len(all_of(one)) == 2 * FRAME_BYTES + FIRST_HELD - MAX_HASTY


def test_bytes_that_the_other_end_has_are_not_sent_again_after_its_answer() -> None:
    one, other = pair()
    one.write(b"abcdef")
    assert fed(other, one.take(0.0)[:-2]) == b"abcd"
    one.begin(1.0)
    one.resume(4)
    assert one.take(1.0)[FRAME_BYTES:] == b"ef"


def test_a_line_whose_other_end_never_answers_is_dead() -> None:
    one = stream()
    one.begin(5.0)
    assert one.dead_in(5.0) == PATIENCE
    one.resume(0)
    assert one.dead_in(9.0) is None


def test_the_end_follows_the_last_byte_and_comes_once() -> None:
    one, other = pair()
    one.write(b"abc")
    one.ended = True
    assert fed(other, all_of(one)) == b"abc"
    assert other.other_ended
    assert one.take(0.0) == b""


def test_nothing_is_sent_at_rest() -> None:
    one, other = pair()
    one.write(b"PING\r\n")
    fed(other, one.take(0.0), 0.0)
    fed(one, other.take(0.0), 0.0)
    assert one.take(9.0) == other.take(9.0) == b""
    assert one.dead_in(9.0) is None


def test_a_line_that_owes_an_acknowledgement_is_dead_after_a_silence() -> None:
    one, other = pair()
    one.write(b"a")
    one.take(20.0)
    assert one.dead_in(20.0) == PATIENCE
    other.write(b"b")
    fed(one, other.take(21.0), 21.0)
    assert one.dead_in(21.0) == PATIENCE


@pytest.mark.parametrize(
    ("rate", "least", "most"),
    [(2_400, 4_000, 12_000), (100_000, 150_000, 250_000), (10**7, MAX_HELD, MAX_HELD)],
)
def test_a_session_holds_about_two_seconds_of_the_line(rate: int, least: int, most: int) -> None:
    one, other = pair()
    up, back = Reader(other), Reader(one)
    on_way = b""
    for step in range(100):
        now = step / 10
        one.write(bytes(max(0, one.room())))
        on_way += all_of(one, now)
        up.feed(on_way[: rate // 10])
        on_way = on_way[rate // 10 :]
        back.feed(other.take(now), now)
    assert least <= one.most <= most


def test_a_session_whose_line_is_dead_holds_no_more_than_its_bound() -> None:
    one = stream()
    one.write(bytes(one.room()))
    all_of(one)
    assert (one.end, one.room()) == (FIRST_HELD, 0)


def test_sessions_share_the_bytes_they_hold_beyond_their_own() -> None:
    budget = Budget(FIRST_HELD)
    one, other = ByteStream(budget), ByteStream(budget)
    one.most = MAX_HELD
    one.write(bytes(one.room()))
    assert (one.end, budget.left, other.room()) == (2 * FIRST_HELD, 0, FIRST_HELD)
    one.release()
    assert budget.left == FIRST_HELD
