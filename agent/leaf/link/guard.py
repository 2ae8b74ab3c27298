"""The local guard: pure. Before the first publish after every connection it compares the stream with what the
agent remembers, for a stream that was wiped or put back loses data silently over its old link consumer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from agent.contract import Checkpoint
from agent.leaf.state import Acked


class EpochReason(StrEnum):
    """Why a new epoch is needed; the value is the label of the metric."""

    FIRST = "first_start"
    STATE_LOST = "state_lost"
    RECREATED = "stream_recreated"
    PUT_BACK = "stream_put_back"
    CONSUMER_GONE = "consumer_gone"
    HUB_LOST = "hub_lost"
    DIFFERENT = "different"
    STALLED = "stalled"


SENTENCES = {
    EpochReason.FIRST: "the link is made for the first time",
    EpochReason.STATE_LOST: "the state file knows nothing of a stream that holds messages",
    EpochReason.RECREATED: "the stream is not the one that acknowledged last: its store was lost or deleted",
    EpochReason.PUT_BACK: "the stream lacks messages that were acknowledged: an older store was put back",
    EpochReason.CONSUMER_GONE: "the link consumer was deleted",
    EpochReason.HUB_LOST: "the hub lacks messages that it had acknowledged: its stream was made anew or an "
    "older store was put back there",
    EpochReason.DIFFERENT: "leaf and hub hold different messages under one sequence: a store was put back",
    EpochReason.STALLED: "the hub's server answers and takes nothing of what was sent to it",
}


@dataclass(frozen=True, slots=True)
class RememberedStream:
    """What the state file holds of one class."""

    epoch: str | None
    acked: Acked | None
    checkpoint: Checkpoint | None


@dataclass(frozen=True, slots=True)
class EpochObservation:
    """What the server shows: the stream's identity and last sequence, the message id at the checkpoint's
    sequence ("" for a message without one, None where no message is: it was trimmed), and where an older
    store was restored, the last sequence that it `kept` of what the agent saw there and that of the newest
    `earlier` checkpoint whose message it holds, 0 without one."""

    created: str
    last: int
    id_at_checkpoint: str | None
    kept: int | None = None
    earlier: int = 0


@dataclass(frozen=True, slots=True)
class NewEpoch:
    """Start a new epoch at this sequence of the stream. `gone` are the first and last sequence that neither
    side's stream holds any more."""

    why: EpochReason
    start: int
    gone: tuple[int, int] | None = None

    def sentence(self) -> str:
        """Why it is needed, and what is gone."""
        if self.gone is None:
            return SENTENCES[self.why]
        first, last = self.gone
        return (
            f"{SENTENCES[self.why]}; messages {first} to {last} are in neither stream any more, the audit "
            "says which of them are in the table"
        )


def judge(remembered: RememberedStream, seen: EpochObservation) -> NewEpoch | None:
    """A new epoch and where it starts, or None when the old one may go on. It starts after the last place on
    which both sides agreed, or at the first message: what then arrives twice is dropped at the table."""
    why = _why(remembered, seen)
    if why is None:
        return None
    return NewEpoch(why, _start(remembered, seen))


def _why(remembered: RememberedStream, seen: EpochObservation) -> EpochReason | None:
    acked = remembered.acked
    if acked is not None and acked.created != seen.created:
        return EpochReason.RECREATED
    if acked is not None and (seen.kept is not None or seen.last < acked.last):
        return EpochReason.PUT_BACK
    if remembered.checkpoint is not None and seen.id_at_checkpoint not in (
        None,
        remembered.checkpoint.message_id,
    ):
        return EpochReason.PUT_BACK
    if remembered.epoch is None:
        return EpochReason.FIRST if seen.last == 0 else EpochReason.STATE_LOST
    return None


def _start(remembered: RememberedStream, seen: EpochObservation) -> int:
    checkpoint, acked = remembered.checkpoint, remembered.acked
    if checkpoint is None or acked is None or acked.created != seen.created:
        return 1
    held = checkpoint.leaf_seq if seen.id_at_checkpoint == checkpoint.message_id else seen.earlier
    return held + 1
