"""Whether a mirror that does not hold what the hub holds is found, whenever the two are compared."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from agent.contract import COMMANDS_CHECKED, CommandKey
from agent.leaf.link.command_mirror.history import History


class Pair:
    """A hub and its mirror: `hub` and `mirror` hold times by sequence, the mirror is filled as a server does
    it, dropping what is not above its own last sequence."""

    def __init__(self) -> None:
        self.history = History(None)
        self.hub: dict[int, int] = {}
        self.mirror: dict[int, int] = {}
        self._clock = 0

    def send(self, count: int) -> None:
        for _ in range(count):
            self._clock += 1
            self.hub[max(self.hub, default=0) + 1] = self._clock

    def restore(self, lost: int) -> None:
        for seq in sorted(self.hub)[len(self.hub) - lost :]:
            del self.hub[seq]

    def flow(self) -> None:
        last = max(self.mirror, default=0)
        self.mirror |= {seq: time for seq, time in self.hub.items() if seq > last}

    def read(self) -> None:
        newest = max(self.mirror.items(), default=None)
        while (seq := self.history.reads_from(newest)) is not None:
            self.history.add(next(one for one in sorted(self.mirror.items()) if one[0] >= seq))

    def ask(self) -> bool:
        """Compare until nothing is left to be asked; whether all was the same."""
        while True:
            self.read()
            asked = self.history.question()
            before = self.history.agreed
            self.history.answered(asked, same := self._same(asked))
            if not same or self.history.agreed == before:
                return same

    def _same(self, asked: Sequence[CommandKey]) -> bool:
        assert len(asked) <= COMMANDS_CHECKED
        return all(self.hub.get(seq) == time for seq, time in asked)


steps = st.one_of(
    st.tuples(st.just("send"), st.integers(1, 2 * COMMANDS_CHECKED)),
    st.tuples(st.just("restore"), st.integers(1, 5)),
    st.tuples(st.just("flow"), st.just(0)),
    st.tuples(st.just("ask"), st.just(0)),
)


@given(st.integers(1, 20), st.lists(steps, max_size=12))
def test_a_mirror_that_differs_from_its_hub_is_found(first: int, course: list[tuple[str, int]]) -> None:
    pair = Pair()
    pair.send(first)
    for step, count in course:
        if step == "ask" and not pair.ask():
            return
        if step in ("send", "restore"):
            getattr(pair, step)(count)
        elif step == "flow":
            pair.flow()
    pair.flow()
    if pair.mirror == pair.hub:
        assert pair.ask()
    elif any(pair.hub.get(seq) != time for seq, time in pair.mirror.items()):
        assert not pair.ask()


def test_a_hub_that_is_behind_is_found_at_once_however_long_the_mirror_is() -> None:
    pair = Pair()
    pair.send(5 * COMMANDS_CHECKED)
    pair.flow()
    pair.restore(1)
    pair.read()
    assert max(pair.mirror.items()) in pair.history.question()


def test_what_the_hub_does_not_hold_any_more_is_not_asked_for_ever() -> None:
    history = History((4, 104))
    history.reads_from((7, 107))
    history.add((7, 107))
    asked = history.question()
    assert asked == ((4, 104), (7, 107))
    history.answered(asked, None)
    assert history.question() == ((7, 107),)


def test_an_answer_to_another_question_says_nothing() -> None:
    history = History(None)
    history.add((4, 104))
    history.answered(((3, 103),), True)
    assert history.agreed is None


def test_what_comes_while_the_hub_is_asked_is_asked_about_next() -> None:
    history = History((4, 104))
    history.reads_from((4, 104))
    asked = history.question()
    history.reads_from((5, 105))
    history.add((5, 105))
    history.answered(asked, True)
    assert history.question() == ((4, 104), (5, 105))
