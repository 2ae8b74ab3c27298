"""When a leaf announces itself: soon after a failure, ever more rarely while it fails, and at once over a new
link; and which classes it announces as idle."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, cast

import pytest

from agent.base.metrics import Metrics
from agent.contract import Answer
from agent.jetstream import JetStream
from agent.leaf.events import Events
from agent.leaf.link.announce_loop import AnnounceLoop, IdleClasses
from agent.leaf.link.announcer import Announcer, AnnounceResult
from agent.leaf.link.observation import UplinkStatus
from agent.leaf.link.status import LinkStatus
from tests.unit.models.virtual_clock import VirtualClock

_LINK = UplinkStatus(True, 0.0, "link")
_MINUTE = 60.0


class Hub:
    """Notes when it is asked; answers at once, not at all, or says that nobody listens."""

    def __init__(self, time: VirtualClock) -> None:
        self.asked: list[float] = []
        self.says: AnnounceResult | None = AnnounceResult(silence="nobody listens")
        """None: it has been asked, and no answer comes."""
        self._time = time

    async def announce(self, *_: Any, **__: Any) -> AnnounceResult:
        """In the place of the announcer."""
        self.asked.append(self._time.now)
        if self.says is None:
            await asyncio.sleep(_MINUTE)
        return self.says or AnnounceResult(silence="no answer came")


@pytest.fixture
def time() -> Iterator[VirtualClock]:
    clock = VirtualClock()
    yield clock
    clock.close()


@pytest.fixture
def hub(time: VirtualClock) -> Hub:
    return Hub(time)


@pytest.fixture
def announcing(time: VirtualClock, hub: Hub) -> Iterator[AnnounceLoop]:
    metrics = Metrics()
    status = LinkStatus("edge-1", {}, metrics, Events(), lambda: False)

    async def accept(*_: Any) -> None:
        """Nothing is remembered here."""

    loop = AnnounceLoop(status, metrics, lambda: _LINK, accept, lambda *_: None, lambda: False, 10.0)
    with loop.connected(cast(JetStream, None), cast(Announcer, hub)):
        time.spawn(loop.run())
        yield loop


def test_a_hub_that_does_not_answer_is_asked_ever_more_rarely(
    time: VirtualClock, hub: Hub, announcing: AnnounceLoop
) -> None:
    for _ in range(200):
        announcing.announce_now()
        time.passes(0.1)
    assert 20 <= len(hub.asked) <= 30


def test_a_hub_that_refuses_is_asked_ever_more_rarely_up_to_the_interval_until_it_takes_the_leaf_in(
    time: VirtualClock, hub: Hub, announcing: AnnounceLoop
) -> None:
    hub.says = AnnounceResult(Answer(refused="no such class"))
    for _ in range(600):
        announcing.announce_now()
        time.passes(0.1)
    waits = [round(later - asked) for asked, later in pairwise(hub.asked)]
    assert waits == [1, 2, 4, 8, 10, 10, 10, 10][: len(waits)]
    assert len(waits) >= 7
    assert announcing.refused == "no such class"
    hub.says = AnnounceResult(Answer())
    time.passes(10.0)
    assert announcing.refused is None
    asked = len(hub.asked)
    for _ in range(3):
        announcing.announce_now()
        time.passes(0.1)
    assert len(hub.asked) == asked + 3, "a leaf that is taken in is heard at once"


def test_a_new_link_is_announced_over_at_once_however_long_the_hub_was_away(
    time: VirtualClock, hub: Hub, announcing: AnnounceLoop
) -> None:
    for _ in range(200):
        announcing.announce_now()
        time.passes(0.1)
    since = time.now
    announcing.link_changed()
    time.passes()
    assert hub.asked[-1] == since


def test_a_new_link_ends_the_wait_for_an_answer_over_the_one_before(
    time: VirtualClock, hub: Hub, announcing: AnnounceLoop
) -> None:
    hub.says = None
    time.passes(2.0)
    assert len(hub.asked) == 1
    hub.says, since = AnnounceResult(Answer()), time.now
    announcing.link_changed()
    time.passes()
    assert hub.asked[1:] == [since]
    assert announcing.silent_since is None


class Watched:
    """One class that is idle after a minute."""

    def __init__(self, after: float | None = 60.0) -> None:
        self.now, self.ended = 0.0, 0
        self.idle = IdleClasses({"normal": after, "alarm": None}, self._end, lambda: self.now)

    def _end(self) -> None:
        self.ended += 1

    def is_idle(self, at: float) -> bool:
        """Whether it is, at that time."""
        self.now = at
        return self.idle.is_idle("normal")

    def seen(self, at: float, *place: int) -> None:
        """A look at that time."""
        self.now = at
        self.idle.seen("normal", *place)


def test_a_class_is_idle_once_nothing_has_moved_for_long_enough() -> None:
    watched = Watched()
    watched.seen(100.0, 1)
    watched.seen(130.0, 1)
    assert not watched.is_idle(159.0)
    assert watched.is_idle(160.0)


def test_what_is_seen_or_stored_ends_it_and_is_said_once() -> None:
    watched = Watched()
    watched.seen(0.0, 1)
    assert watched.is_idle(60.0)
    watched.seen(61.0, 2)
    watched.idle.moved("normal")
    assert (watched.ended, watched.is_idle(62.0)) == (1, False)
    assert watched.is_idle(121.0)
    watched.idle.moved("normal")
    assert watched.ended == 2


def test_a_class_that_was_never_seen_or_may_not_rest_is_not_idle() -> None:
    assert not Watched().is_idle(1e9)
    never = Watched(None)
    never.seen(0.0, 1)
    assert not never.is_idle(1e9)
    assert not never.idle.any_idle


def test_each_class_rests_by_its_own_time() -> None:
    watched = Watched()
    watched.seen(0.0, 1)
    watched.idle.seen("alarm", 1)
    assert not watched.idle.any_idle
    assert watched.is_idle(60.0)
    assert watched.idle.any_idle
    assert not watched.idle.is_idle("alarm")
