"""When a class is idle."""

from __future__ import annotations

from agent.leaf.link.idle import IdleClasses


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
