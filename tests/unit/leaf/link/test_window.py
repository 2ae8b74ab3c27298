"""The window follows a line that is played: its rate, round trip and breaks, and the requests for
acknowledgements as nats-server makes them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from agent.leaf.link.window import LARGEST, Window, WindowLook, looked, round_seconds
from agent.leaf.stream_configs import MAX_ACK_PENDING

_SETTLED = 40.0
"""Seconds after which a window has found the line's rate."""


class PlayedLine(Struct):
    """A line of so many messages a second, and a link consumer with more messages than it can ever carry."""

    rate: float
    round_trip: float
    relayed: bool = False
    window: Window = Window()
    now: float = 1.0
    link: int = 1
    limit: int = MAX_ACK_PENDING
    acknowledged: int = 0
    deliveries: int = 0
    under_way: int = 0
    queued: float = 0.0
    """Messages that have not crossed yet."""
    asked: tuple[float, int] | None = None
    """When a request for an acknowledgement is answered, and for how many messages."""

    def look(self, *, up: bool = True, paused: bool = False) -> None:
        self.window = looked(
            self.window,
            WindowLook(
                now=self.now,
                link=str(self.link) if up else "",
                epoch="one",
                paused=paused,
                bound=up,
                acknowledged=self.acknowledged,
                deliveries=self.deliveries,
                under_way=self.under_way,
                waiting=1_000_000,
                round_trip=self.round_trip,
                relayed=self.relayed,
            ),
        )
        if up and self.window.differs(self.limit):
            self.limit = self.window.limit

    def flow(self, seconds: float) -> None:
        """Let messages cross, with as many acknowledgements as come meanwhile, and look as often as the
        window asks for."""
        end = self.now + seconds
        while self.now < end:
            self.look()
            until = min(end, self.now + (self.window.next_look or 1.0))
            self._deliver()
            while self.asked is not None and self.asked[0] <= until:
                self.queued = max(0.0, self.queued - (self.asked[0] - self.now) * self.rate)
                self.now, taken = self.asked
                self.acknowledged += taken
                self.under_way -= taken
                self.asked = None
                self._deliver()
            self.queued = max(0.0, self.queued - (until - self.now) * self.rate)
            self.now = until

    def _deliver(self) -> None:
        sent = max(0, self.limit - self.under_way)
        self.under_way += sent
        self.deliveries += sent
        self.queued += sent
        if self.asked is None and sent:
            self.asked = self.now + self.queued / self.rate + self.round_trip, self.under_way
        elif self.asked is None and self.under_way:
            # After a second of silence it asks with its heartbeat.
            self.asked = self.now + max(1.0, self.queued / self.rate) + self.round_trip, self.under_way

    def break_down(self) -> None:
        """Lose what has not arrived; the hub's server asks again for all that is not acknowledged."""
        self.look(up=False)
        self.now, self.link, self.queued, self.asked = self.now + 1.0, self.link + 1, 0.0, None
        self.look(paused=True)
        self.deliveries += 1
        self.look()
        self.now, self.deliveries, self.under_way = self.now + 0.2 + self.round_trip, 0, 0

    @property
    def seconds_under_way(self) -> float:
        return self.under_way / self.rate


_rates = st.floats(0.5, 5_000)
_round_trips = st.sampled_from([0.001, 0.02, 0.3, 0.8])


@settings(max_examples=40)
@given(rate=_rates, round_trip=_round_trips)
def test_what_is_under_way_is_bounded_by_the_line_and_keeps_it_busy(rate: float, round_trip: float) -> None:
    played = PlayedLine(rate, round_trip)
    played.flow(_SETTLED)
    before, began = played.acknowledged, played.now
    played.flow(60.0)
    carried = (played.acknowledged - before) / (played.now - began)
    assert played.under_way <= max(4.0, 3.0 * rate * round_seconds(round_trip))
    assert carried >= 0.5 * rate or played.window.size <= 2


def test_a_relayed_link_has_more_messages_under_way_for_a_break_repeats_none() -> None:
    sizes = []
    for relayed in (False, True):
        played = PlayedLine(20.0, 0.3, relayed)
        played.flow(_SETTLED)
        sizes.append(played.window.size)
    assert sizes[1] >= 2 * sizes[0]


@settings(max_examples=40)
@given(before=st.floats(5.0, 500), factor=st.floats(0.05, 20), round_trip=_round_trips)
def test_the_window_follows_a_line_that_becomes_another(
    before: float, factor: float, round_trip: float
) -> None:
    after = before * factor
    played = PlayedLine(before, round_trip)
    played.flow(_SETTLED)
    played.rate = after
    played.break_down()
    played.flow(_SETTLED + 100 * before / after)
    assert played.under_way <= max(4.0, 3.0 * after * round_seconds(round_trip))


@settings(max_examples=40)
@given(rate=st.floats(2.0, 500), round_trip=_round_trips, up=st.floats(5.0, 60.0))
def test_each_window_of_a_line_that_breaks_again_and_again_carries_messages(
    rate: float, round_trip: float, up: float
) -> None:
    played = PlayedLine(rate, round_trip)
    for _ in range(10):
        played.flow(up)
        played.break_down()
    for _ in range(10):
        before = played.acknowledged
        played.flow(up)
        assert played.acknowledged > before
        played.break_down()


def test_a_fast_line_has_the_largest_window_within_seconds() -> None:
    played = PlayedLine(1e6, 0.0005)
    played.flow(5.0)
    assert played.window.size == LARGEST
    assert played.window.next_look is None


def test_links_over_which_nothing_arrives_are_counted_and_try_fewer_messages() -> None:
    played = PlayedLine(100.0, 0.02, window=Window(size=64))
    played.asked = 1e9, 0
    sizes = []
    for _ in range(4):
        played.flow(4.0)
        played.break_down()
        played.asked = 1e9, 0
        sizes.append(played.window.size)
    assert played.window.fruitless == 4
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < 64


def test_after_a_break_one_message_shows_the_hub_what_it_lacks() -> None:
    played = PlayedLine(10.0, 0.02)
    played.flow(30.0)
    under_way = played.under_way
    assert under_way
    played.look(up=False)
    played.link += 1
    played.look(paused=True)
    assert played.window.limit == under_way + 1
    played.deliveries, played.under_way = 0, 0
    played.look()
    assert not played.window.probe


def test_an_idle_class_is_left_alone() -> None:
    idle = WindowLook(
        now=1.0,
        link="1",
        epoch="one",
        paused=False,
        bound=True,
        acknowledged=7,
        deliveries=7,
        under_way=0,
        waiting=0,
    )
    window = looked(Window(size=40), idle)
    assert window.next_look is None
    assert not window.differs(40)
    assert window.differs(2)
