"""The local guard: when a new epoch is needed, and where it starts."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from agent.contract import Checkpoint, Readings, new_epoch, new_run
from agent.leaf.link.guard import SENTENCES, NewEpoch, Remembered, Seen, Why, judge
from agent.leaf.state import Acked

EPOCH = new_epoch()
RUN = new_run()
CREATED, OTHER = "2026-11-21T06:00:00Z", "2026-11-21T07:00:00Z"
CHECKPOINT = Checkpoint(40, f"{RUN}-normal-40", "TELEMETRY_0", 400)


def acked(seq: int) -> Acked:
    """A last PubAck at this sequence of the stream made at `CREATED`."""
    return Acked(RUN, seq, seq, CREATED, Readings())


@dataclass(frozen=True)
class Case:
    """What is remembered and seen, and what follows."""

    name: str
    remembered: Remembered
    seen: Seen
    verdict: NewEpoch | None


CASES = [
    Case("nothing yet", Remembered(None, None, None), Seen(CREATED, 0, None), NewEpoch(Why.FIRST, 1)),
    Case(
        "the state file was lost",
        Remembered(None, None, None),
        Seen(CREATED, 9, None),
        NewEpoch(Why.STATE_LOST, 1),
    ),
    Case(
        "all is well",
        Remembered(EPOCH, acked(50), CHECKPOINT),
        Seen(CREATED, 50, CHECKPOINT.message_id),
        None,
    ),
    Case(
        "an older store was restored that holds an earlier checkpoint",
        Remembered(EPOCH, acked(50), CHECKPOINT),
        Seen(CREATED, 30, None, kept=30, earlier=25),
        NewEpoch(Why.PUT_BACK, 26),
    ),
    Case(
        "an older store was restored that holds the newest checkpoint",
        Remembered(EPOCH, acked(50), CHECKPOINT),
        Seen(CREATED, 45, CHECKPOINT.message_id, kept=45, earlier=25),
        NewEpoch(Why.PUT_BACK, 41),
    ),
    Case("others have published too", Remembered(EPOCH, acked(50), None), Seen(CREATED, 90, None), None),
    Case(
        "what devices had published is gone",
        Remembered(EPOCH, replace(acked(50), top=90), None),
        Seen(CREATED, 89, None),
        NewEpoch(Why.PUT_BACK, 1),
    ),
    Case("nothing was acknowledged yet", Remembered(EPOCH, None, None), Seen(CREATED, 0, None), None),
    Case(
        "the checkpoint was trimmed",
        Remembered(EPOCH, acked(50), CHECKPOINT),
        Seen(CREATED, 60, None),
        None,
    ),
    Case(
        "the store was wiped",
        Remembered(EPOCH, acked(50), CHECKPOINT),
        Seen(OTHER, 0, None),
        NewEpoch(Why.RECREATED, 1),
    ),
    Case(
        "the store was wiped and has overtaken what was acknowledged",
        Remembered(EPOCH, acked(50), CHECKPOINT),
        Seen(OTHER, 60, CHECKPOINT.message_id),
        NewEpoch(Why.RECREATED, 1),
    ),
    Case(
        "an older store was put back that lacks one message",
        Remembered(EPOCH, acked(50), None),
        Seen(CREATED, 49, None),
        NewEpoch(Why.PUT_BACK, 1),
    ),
    Case(
        "an older store was put back, which holds the checkpoint",
        Remembered(EPOCH, acked(50), CHECKPOINT),
        Seen(CREATED, 45, CHECKPOINT.message_id),
        NewEpoch(Why.PUT_BACK, 41),
    ),
    Case(
        "an older store was put back, from before the checkpoint",
        Remembered(EPOCH, acked(50), CHECKPOINT),
        Seen(CREATED, 30, None),
        NewEpoch(Why.PUT_BACK, 1),
    ),
    Case(
        "an older store was put back, and a device has published past what was acknowledged",
        Remembered(EPOCH, acked(50), CHECKPOINT),
        Seen(CREATED, 70, ""),
        NewEpoch(Why.PUT_BACK, 1),
    ),
    Case(
        "an older store was put back, and devices have published past all that was seen",
        Remembered(EPOCH, acked(50), None),
        Seen(CREATED, 70, None, kept=30),
        NewEpoch(Why.PUT_BACK, 1),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_guard_decides(case: Case) -> None:
    assert judge(case.remembered, case.seen) == case.verdict


def test_every_reason_has_a_sentence() -> None:
    assert set(SENTENCES) == set(Why)
