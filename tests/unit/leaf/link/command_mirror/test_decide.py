"""The leaf's mirror of its commands: each state, and the one thing that is done about it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.contract import COMMANDS_CHECKED, CommandKey, CommandsHeld, command_deliver, new_epoch
from agent.leaf.link.command_mirror.decide import (
    MISSED_ANSWERS,
    CommandComparison,
    Make,
    MirrorDecision,
    MirrorEpochReason,
    MirrorInfo,
    MirrorObservation,
    NewMirrorEpoch,
    Release,
    decide,
)

steps = st.one_of(
    st.tuples(st.just("send"), st.integers(1, 2 * COMMANDS_CHECKED)),
    st.tuples(st.just("restore"), st.integers(1, 5)),
    st.tuples(st.just("flow"), st.just(0)),
    st.tuples(st.just("ask"), st.just(0)),
)
EPOCH = new_epoch()
NOW, OLD = command_deliver("edge-1", EPOCH), command_deliver("edge-1", new_epoch())
CREATED, OTHER = "2026-11-21T06:00:00Z", "2026-11-21T07:00:00Z"
HELD = CommandsHeld(EPOCH, CREATED, stream_last=50, last=40, behind=0)
WELL = MirrorObservation(NOW, fresh=False, mirror=MirrorInfo(40, NOW, CREATED), held=HELD, asked_last=40)


@dataclass(frozen=True)
class Case:
    """What is seen, the action that follows, and words of the sentence."""

    name: str
    seen: MirrorObservation
    action: NewMirrorEpoch | Make | Release | None
    words: str
    lag: int | None = None


CASES = [
    Case("all is well", WELL, None, "flowing", 0),
    Case(
        "commands are on their way",
        replace(WELL, held=dataclasses.replace(HELD, last=44, behind=3)),
        None,
        "at most 3 commands",
        3,
    ),
    Case(
        "nothing yet",
        MirrorObservation(None, False, None, None, 0, mirrored=False),
        NewMirrorEpoch(MirrorEpochReason.FIRST),
        "created for the first time",
    ),
    Case(
        "an agent ended before it had made the first mirror",
        MirrorObservation(NOW, False, None, None, 0, mirrored=False),
        NewMirrorEpoch(MirrorEpochReason.FIRST),
        "created for the first time",
    ),
    Case(
        "the hub has not answered to the first epoch",
        MirrorObservation(NOW, True, None, None, 0),
        None,
        "does not answer",
    ),
    Case(
        "the hub has its consumer",
        MirrorObservation(NOW, True, None, HELD, 0),
        Make(CREATED),
        "being created",
    ),
    Case(
        "the mirror was deleted",
        replace(WELL, mirror=None),
        NewMirrorEpoch(MirrorEpochReason.GONE),
        "deleted here",
    ),
    Case(
        "the mirror was deleted while the hub is away",
        replace(WELL, mirror=None, held=None),
        NewMirrorEpoch(MirrorEpochReason.GONE),
        "deleted here",
    ),
    Case(
        "the state file was lost",
        MirrorObservation(None, False, MirrorInfo(40, OLD, CREATED), None, 0),
        NewMirrorEpoch(MirrorEpochReason.FOREIGN),
        "another epoch",
    ),
    Case(
        "the state file was restored from an backup",
        replace(WELL, mirror=MirrorInfo(40, OLD, CREATED)),
        NewMirrorEpoch(MirrorEpochReason.FOREIGN),
        "another epoch",
    ),
    Case(
        "the old mirror stays until the hub has the new consumer",
        MirrorObservation(NOW, True, MirrorInfo(40, OLD, CREATED), None, 0),
        None,
        "those that are here can be read",
    ),
    Case(
        "the old mirror is replaced",
        MirrorObservation(NOW, True, MirrorInfo(40, OLD, CREATED), HELD, 0),
        Make(CREATED),
        "being created",
    ),
    Case("the link is down", replace(WELL, held=None), None, "down"),
    Case("the hub was not asked yet", replace(WELL, held=None, asked=False), None, "was not asked"),
    Case(
        "the origin was created again",
        replace(WELL, held=dataclasses.replace(HELD, stream_created=OTHER)),
        NewMirrorEpoch(MirrorEpochReason.RECREATED),
        "deleted and created again",
    ),
    Case(
        "the origin was restored and is behind the mirror",
        replace(WELL, held=dataclasses.replace(HELD, stream_last=39)),
        NewMirrorEpoch(MirrorEpochReason.RESTORED),
        "backup",
    ),
    Case(
        "the origin was restored and is ahead of the mirror again",
        replace(WELL, held=dataclasses.replace(HELD, agreed=False)),
        NewMirrorEpoch(MirrorEpochReason.RESTORED),
        "backup",
    ),
    Case(
        "the hub has dropped the mirror's newest command",
        replace(WELL, held=dataclasses.replace(HELD, last=0, agreed=None)),
        None,
        "flowing",
        0,
    ),
    Case(
        "local programs wait until the mirror is filled to their positions",
        replace(WELL, mirror=MirrorInfo(20, NOW, CREATED), held=dataclasses.replace(HELD, behind=20), top=30),
        None,
        "at most 20 commands",
        20,
    ),
    Case(
        "local programs are let go although more commands are on their way",
        replace(WELL, mirror=MirrorInfo(30, NOW, CREATED), held=dataclasses.replace(HELD, behind=10), top=30),
        Release(),
        "at most 10 commands",
        10,
    ),
    Case("local programs were further than the hub is now", replace(WELL, top=90), Release(), "flowing", 0),
    Case(
        "local programs wait for a hub that does not answer",
        replace(WELL, held=None, top=30),
        None,
        "local programs wait",
    ),
    Case(
        "commands come in between question and look",
        replace(WELL, mirror=MirrorInfo(60, NOW, CREATED)),
        None,
        "flowing",
        0,
    ),
    Case(
        "commands have come in since the answer",
        replace(WELL, held=dataclasses.replace(HELD, behind=3)),
        None,
        "flowing",
        0,
    ),
    Case(
        "the mirror lacks what was delivered",
        replace(WELL, missed=MISSED_ANSWERS),
        NewMirrorEpoch(MirrorEpochReason.MISSED),
        "does not hold",
    ),
    Case(
        "a foreign stream is never deleted",
        MirrorObservation(NOW, True, MirrorInfo(7, "", ""), HELD, 0),
        None,
        "was not created by the agent",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda one: one.name)
def test_each_state_of_the_mirror_has_its_sentence_and_its_remedy(case: Case) -> None:
    decision = decide(case.seen)
    assert decision.action == case.action
    assert case.words in decision.sentence
    assert decision.lag == case.lag
    assert decision.up is (case.lag is not None)


@pytest.mark.parametrize("mirror", [None, MirrorInfo(40, OLD, CREATED)], ids=["no mirror", "a mirror"])
@pytest.mark.parametrize("held", [None, HELD], ids=["no answer", "an answer"])
def test_only_a_first_mirror_is_usual(mirror: MirrorInfo | None, held: CommandsHeld | None) -> None:
    seen = MirrorObservation(NOW, True, mirror, held, 0, mirrored=mirror is not None)
    assert decide(seen).usual is (mirror is None)
    assert not decide(replace(seen, mirror=None, mirrored=True)).usual


@pytest.mark.parametrize("top", [None, 40], ids=["no program waits", "a program waits"])
def test_silence_is_usual_until_the_hub_was_asked(top: int | None) -> None:
    seen = replace(WELL, held=None, top=top, asked=False)
    assert decide(seen).usual
    assert not decide(replace(seen, asked=True)).usual


def test_nothing_is_done_twice_about_a_mirror_that_was_just_made() -> None:
    made = MirrorObservation(NOW, fresh=False, mirror=MirrorInfo(0, NOW, CREATED), held=HELD, asked_last=0)
    assert decide(made) == MirrorDecision("flowing: all commands that the hub holds are here", True, 0)


class Pair:
    """A hub and its mirror: `hub` and `mirror` hold times by sequence, the mirror is filled as a server does
    it, dropping what is not above its own last sequence."""

    def __init__(self) -> None:
        self.comparison = CommandComparison(None)
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
        while (seq := self.comparison.read_from(newest)) is not None:
            self.comparison.add(next(command for command in sorted(self.mirror.items()) if command[0] >= seq))

    def ask(self) -> bool:
        """Compare until nothing is left to be asked; whether all was the same."""
        while True:
            self.read()
            asked = self.comparison.to_ask()
            before = self.comparison.agreed
            self.comparison.answered(asked, same := self._same(asked))
            if not same or self.comparison.agreed == before:
                return same

    def _same(self, asked: Sequence[CommandKey]) -> bool:
        assert len(asked) <= COMMANDS_CHECKED
        return all(self.hub.get(seq) == time for seq, time in asked)


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
    assert max(pair.mirror.items()) in pair.comparison.to_ask()


def test_what_the_hub_does_not_hold_any_more_is_not_asked_for_ever() -> None:
    comparison = CommandComparison((4, 104))
    comparison.read_from((7, 107))
    comparison.add((7, 107))
    asked = comparison.to_ask()
    assert asked == ((4, 104), (7, 107))
    comparison.answered(asked, None)
    assert comparison.to_ask() == ((7, 107),)


def test_an_answer_to_another_question_says_nothing() -> None:
    comparison = CommandComparison(None)
    comparison.add((4, 104))
    comparison.answered(((3, 103),), True)
    assert comparison.agreed is None


def test_what_comes_while_the_hub_is_asked_is_asked_about_next() -> None:
    comparison = CommandComparison((4, 104))
    comparison.read_from((4, 104))
    asked = comparison.to_ask()
    comparison.read_from((5, 105))
    comparison.add((5, 105))
    comparison.answered(asked, True)
    assert comparison.to_ask() == ((4, 104), (5, 105))
