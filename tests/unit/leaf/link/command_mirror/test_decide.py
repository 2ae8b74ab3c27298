"""The leaf's mirror of its commands: each state, and the one thing that is done about it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from agent.contract import CommandsHeld, command_deliver, new_epoch
from agent.leaf.link.command_mirror.decide import (
    MISSED_ANSWERS,
    Make,
    MirrorDecision,
    MirrorEpochReason,
    MirrorInfo,
    MirrorObservation,
    NewMirrorEpoch,
    Release,
    decide,
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
        replace(WELL, held=replace(HELD, last=44, behind=3)),
        None,
        "at most 3 commands",
        3,
    ),
    Case(
        "nothing yet",
        MirrorObservation(None, False, None, None, 0, mirrored=False),
        NewMirrorEpoch(MirrorEpochReason.FIRST),
        "made for the first time",
    ),
    Case(
        "an agent ended before it had made the first mirror",
        MirrorObservation(NOW, False, None, None, 0, mirrored=False),
        NewMirrorEpoch(MirrorEpochReason.FIRST),
        "made for the first time",
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
        Make(CREATED, False),
        "being made",
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
        "the state file was restored from an older copy",
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
        Make(CREATED, True),
        "being made",
    ),
    Case("the link is down", replace(WELL, held=None), None, "down"),
    Case(
        "the origin was created again",
        replace(WELL, held=replace(HELD, stream_created=OTHER)),
        NewMirrorEpoch(MirrorEpochReason.RECREATED),
        "deleted and created again",
    ),
    Case(
        "the origin was restored and is behind the mirror",
        replace(WELL, held=replace(HELD, stream_last=39)),
        NewMirrorEpoch(MirrorEpochReason.RESTORED),
        "older copy",
    ),
    Case(
        "the origin was restored and is ahead of the mirror again",
        replace(WELL, held=replace(HELD, agreed=False)),
        NewMirrorEpoch(MirrorEpochReason.RESTORED),
        "older copy",
    ),
    Case(
        "the hub has dropped the mirror's newest command",
        replace(WELL, held=replace(HELD, last=0, agreed=None)),
        None,
        "flowing",
        0,
    ),
    Case(
        "local programs wait until the mirror is filled to their places",
        replace(WELL, mirror=MirrorInfo(20, NOW, CREATED), held=replace(HELD, behind=20), top=30),
        None,
        "at most 20 commands",
        20,
    ),
    Case(
        "local programs are let go although more commands are on their way",
        replace(WELL, mirror=MirrorInfo(30, NOW, CREATED), held=replace(HELD, behind=10), top=30),
        Release(),
        "at most 10 commands",
        10,
    ),
    Case(
        "local programs were further than the hub is now",
        replace(WELL, top=90),
        Release(),
        "flowing",
        0,
    ),
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
        replace(WELL, held=replace(HELD, behind=3)),
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


@pytest.mark.parametrize("mirror", [None, MirrorInfo(40, OLD, CREATED)], ids=["no mirror", "a mirror"])
@pytest.mark.parametrize("held", [None, HELD], ids=["no answer", "an answer"])
def test_only_a_first_mirror_is_usual(mirror: MirrorInfo | None, held: CommandsHeld | None) -> None:
    seen = MirrorObservation(NOW, True, mirror, held, 0, mirrored=mirror is not None)
    assert decide(seen).usual is (mirror is None)
    assert not decide(replace(seen, mirror=None, mirrored=True)).usual


def test_nothing_is_done_twice_about_a_mirror_that_was_just_made() -> None:
    made = MirrorObservation(NOW, fresh=False, mirror=MirrorInfo(0, NOW, CREATED), held=HELD, asked_last=0)
    assert decide(made) == MirrorDecision("flowing: all commands that the hub holds are here", True, 0)
