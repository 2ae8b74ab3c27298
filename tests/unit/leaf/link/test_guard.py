"""The local guard: when a new epoch is needed, and where it starts."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from agent.contract import Checkpoint, Readings, new_epoch, new_run
from agent.leaf.link.guard import SENTENCES, EpochObservation, EpochReason, NewEpoch, RememberedStream, judge
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
    remembered: RememberedStream
    seen: EpochObservation
    verdict: NewEpoch | None


CASES = [
    Case(
        "nothing yet",
        RememberedStream(None, None, None),
        EpochObservation(CREATED, 0, None),
        NewEpoch(EpochReason.FIRST, 1),
    ),
    Case(
        "the state file was lost",
        RememberedStream(None, None, None),
        EpochObservation(CREATED, 9, None),
        NewEpoch(EpochReason.STATE_LOST, 1),
    ),
    Case(
        "all is well",
        RememberedStream(EPOCH, acked(50), CHECKPOINT),
        EpochObservation(CREATED, 50, CHECKPOINT.message_id),
        None,
    ),
    Case(
        "an older store was restored that holds an earlier checkpoint",
        RememberedStream(EPOCH, acked(50), CHECKPOINT),
        EpochObservation(CREATED, 30, None, kept=30, earlier=25),
        NewEpoch(EpochReason.RESTORED, 26),
    ),
    Case(
        "an older store was restored that holds the newest checkpoint",
        RememberedStream(EPOCH, acked(50), CHECKPOINT),
        EpochObservation(CREATED, 45, CHECKPOINT.message_id, kept=45, earlier=25),
        NewEpoch(EpochReason.RESTORED, 41),
    ),
    Case(
        "others have published too",
        RememberedStream(EPOCH, acked(50), None),
        EpochObservation(CREATED, 90, None),
        None,
    ),
    Case(
        "what devices had published is gone",
        RememberedStream(EPOCH, replace(acked(50), top=90), None),
        EpochObservation(CREATED, 89, None),
        NewEpoch(EpochReason.RESTORED, 1),
    ),
    Case(
        "nothing was acknowledged yet",
        RememberedStream(EPOCH, None, None),
        EpochObservation(CREATED, 0, None),
        None,
    ),
    Case(
        "the checkpoint was trimmed",
        RememberedStream(EPOCH, acked(50), CHECKPOINT),
        EpochObservation(CREATED, 60, None),
        None,
    ),
    Case(
        "the store was wiped",
        RememberedStream(EPOCH, acked(50), CHECKPOINT),
        EpochObservation(OTHER, 0, None),
        NewEpoch(EpochReason.RECREATED, 1),
    ),
    Case(
        "the store was wiped and has overtaken what was acknowledged",
        RememberedStream(EPOCH, acked(50), CHECKPOINT),
        EpochObservation(OTHER, 60, CHECKPOINT.message_id),
        NewEpoch(EpochReason.RECREATED, 1),
    ),
    Case(
        "an older store was restored that lacks one message",
        RememberedStream(EPOCH, acked(50), None),
        EpochObservation(CREATED, 49, None),
        NewEpoch(EpochReason.RESTORED, 1),
    ),
    Case(
        "an older store was restored, which holds the checkpoint",
        RememberedStream(EPOCH, acked(50), CHECKPOINT),
        EpochObservation(CREATED, 45, CHECKPOINT.message_id),
        NewEpoch(EpochReason.RESTORED, 41),
    ),
    Case(
        "an older store was restored, from before the checkpoint",
        RememberedStream(EPOCH, acked(50), CHECKPOINT),
        EpochObservation(CREATED, 30, None),
        NewEpoch(EpochReason.RESTORED, 1),
    ),
    Case(
        "an older store was restored, and a device has published past what was acknowledged",
        RememberedStream(EPOCH, acked(50), CHECKPOINT),
        EpochObservation(CREATED, 70, ""),
        NewEpoch(EpochReason.RESTORED, 1),
    ),
    Case(
        "an older store was restored, and devices have published past all that was seen",
        RememberedStream(EPOCH, acked(50), None),
        EpochObservation(CREATED, 70, None, kept=30),
        NewEpoch(EpochReason.RESTORED, 1),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_guard_decides(case: Case) -> None:
    assert judge(case.remembered, case.seen) == case.verdict


def test_every_reason_has_a_sentence() -> None:
    assert set(SENTENCES) == set(EpochReason)
