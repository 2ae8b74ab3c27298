"""The leaf's mirror of its commands: each state, and the one thing that is done about it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from agent.contract import CommandsHeld, command_deliver, new_epoch
from agent.link.declared.command_mirror import (
    MISSED_ANSWERS,
    Decision,
    Make,
    Mirror,
    NewEpoch,
    Seen,
    Why,
    decide,
)

EPOCH = new_epoch()
NOW, OLD = command_deliver("edge-1", EPOCH), command_deliver("edge-1", new_epoch())
CREATED, OTHER = "2026-11-21T06:00:00Z", "2026-11-21T07:00:00Z"
HELD = CommandsHeld(EPOCH, CREATED, stream_last=50, last=40, behind=0)
WELL = Seen(NOW, fresh=False, mirror=Mirror(40, NOW, CREATED), held=HELD, asked_last=40)


@dataclass(frozen=True)
class Case:
    """What is seen, the action that follows, and words of the sentence."""

    name: str
    seen: Seen
    action: NewEpoch | Make | None
    words: str
    lag: int | None = None


CASES = [
    Case("all is well", WELL, None, "flowing", 0),
    Case(
        "commands are on their way",
        replace(WELL, held=replace(HELD, last=44, behind=3)),
        None,
        "at most 3 commands",
        3,
    ),
    Case("nothing yet", Seen(None, False, None, None, 0), NewEpoch(Why.FIRST), "made for the first time"),
    Case(
        "the hub has not answered to the first epoch", Seen(NOW, True, None, None, 0), None, "does not answer"
    ),
    Case("the hub has its consumer", Seen(NOW, True, None, HELD, 0), Make(CREATED, False), "being made"),
    Case("the mirror was deleted", replace(WELL, mirror=None), NewEpoch(Why.GONE), "deleted here"),
    Case(
        "the mirror was deleted while the hub is away",
        replace(WELL, mirror=None, held=None),
        NewEpoch(Why.GONE),
        "deleted here",
    ),
    Case(
        "the state file was lost",
        Seen(None, False, Mirror(40, OLD, CREATED), None, 0),
        NewEpoch(Why.FIRST),
        "first time",
    ),
    Case(
        "the state file was put back",
        replace(WELL, mirror=Mirror(40, OLD, CREATED)),
        NewEpoch(Why.FOREIGN),
        "another epoch",
    ),
    Case(
        "the old mirror stays until the hub has the new consumer",
        Seen(NOW, True, Mirror(40, OLD, CREATED), None, 0),
        None,
        "those that are here can be read",
    ),
    Case(
        "the old mirror is replaced",
        Seen(NOW, True, Mirror(40, OLD, CREATED), HELD, 0),
        Make(CREATED, True),
        "being made",
    ),
    Case("the link is down", replace(WELL, held=None), None, "down"),
    Case(
        "the origin was made again",
        replace(WELL, held=replace(HELD, stream_created=OTHER)),
        NewEpoch(Why.RECREATED),
        "deleted and made again",
    ),
    Case(
        "the origin was put back",
        replace(WELL, held=replace(HELD, stream_last=39)),
        NewEpoch(Why.PUT_BACK),
        "older copy",
    ),
    Case(
        "commands come in between question and look",
        replace(WELL, mirror=Mirror(60, NOW, CREATED)),
        None,
        "flowing",
        0,
    ),
    Case(
        "commands have come in since the answer",
        replace(WELL, held=replace(HELD, behind=3)),
        None,
        "flowing",
        0,
    ),
    Case(
        "the mirror lacks what was delivered",
        replace(WELL, missed=MISSED_ANSWERS),
        NewEpoch(Why.MISSED),
        "does not hold",
    ),
    Case(
        "somebody else's stream is never deleted",
        Seen(NOW, True, Mirror(7, "", ""), HELD, 0),
        None,
        "was not made by the agent",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda one: one.name)
def test_each_state_of_the_mirror_has_its_sentence_and_its_remedy(case: Case) -> None:
    decision = decide(case.seen)
    assert decision.action == case.action
    assert case.words in decision.sentence
    assert decision.lag == case.lag
    assert decision.up is (case.lag is not None)


def test_nothing_is_done_twice_about_a_mirror_that_was_just_made() -> None:
    made = Seen(NOW, fresh=False, mirror=Mirror(0, NOW, CREATED), held=HELD, asked_last=0)
    assert decide(made) == Decision("flowing: all commands that the hub holds are here", True, 0)
