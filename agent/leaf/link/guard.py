"""The local guard. Pure. Before the first publish after every connection it compares the stream with what the
agent remembers: a stream that was wiped or restored from a backup loses data silently over its old
consumer."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from agent.contract import Checkpoint
from agent.leaf.state import Acked


class EpochReason(StrEnum):
    """Why a new epoch is needed; the value is the label of the metric."""

    FIRST = "first_start"
    STATE_LOST = "state_lost"
    RECREATED = "stream_recreated"
    RESTORED = "stream_put_back"
    CONSUMER_GONE = "consumer_gone"
    HUB_LOST = "hub_lost"
    DIFFERENT = "different"
    STALLED = "stalled"
    CONSUMER_MOVED = "consumer_moved"


SENTENCES = {
    EpochReason.FIRST: "the link is created for the first time",
    EpochReason.STATE_LOST: "the state file has no record of a stream that holds messages",
    EpochReason.RECREATED: "the stream is not the one that acknowledged last: its store was lost or deleted",
    EpochReason.RESTORED: "the stream lacks messages that were acknowledged: its store was restored from "
    "a backup",
    EpochReason.CONSUMER_GONE: "the link consumer is gone: it was deleted, or its server restarted",
    EpochReason.HUB_LOST: "the hub lacks messages that it had acknowledged: its stream was recreated or "
    "restored from a backup, its machine was restarted before its disk had them, this leaf is in another "
    "cell of it now, or its server took them for old ones",
    EpochReason.DIFFERENT: "leaf and hub hold different messages under one sequence: a store was restored "
    "from a backup",
    EpochReason.STALLED: "the hub's server answers and takes nothing of what was sent to it",
    EpochReason.CONSUMER_MOVED: "the leaf's server keeps the link consumer in memory from now on and no "
    "longer on disk, or the other way round",
}


class RememberedStream(Struct, frozen=True):
    """One class in the state file."""

    epoch: str | None
    acked: Acked | None
    checkpoint: Checkpoint | None


class EpochObservation(Struct, frozen=True):
    """The stream as its server shows it."""

    created: str
    """Identifies the stream."""
    last: int
    """The last sequence."""
    id_at_checkpoint: str | None
    """The message id at the checkpoint's sequence: "" for a message without one, None if it was trimmed."""
    kept: int | None = None
    """In a store restored from a backup, the last sequence that it kept of what the agent saw there."""
    earlier: int = 0
    """In such a store, the sequence of the newest earlier checkpoint whose message it holds, 0 without
    one."""


class NewEpoch(Struct, frozen=True):
    """Start a new epoch."""

    reason: EpochReason
    start: int
    """The sequence of the leaf's stream at which it starts."""
    lost: tuple[int, int] | None = None
    """The first and last sequence that neither side's stream holds any more."""

    def sentence(self) -> str:
        """Why it is needed, and what is lost."""
        if self.lost is None:
            return SENTENCES[self.reason]
        first, last = self.lost
        return (
            f"{SENTENCES[self.reason]}; messages {first} to {last} are in neither stream any more, the audit "
            "says which of them are in the table"
        )


def judge(remembered: RememberedStream, observation: EpochObservation) -> NewEpoch | None:
    """The new epoch that is needed, None if the old one may go on. It starts after the last message on which
    both sides agreed, or at the first one: duplicates are dropped at the table."""
    reason = _reason(remembered, observation)
    return None if reason is None else NewEpoch(reason, _start(remembered, observation))


def _reason(remembered: RememberedStream, observation: EpochObservation) -> EpochReason | None:
    acked = remembered.acked
    if acked is not None and acked.created != observation.created:
        return EpochReason.RECREATED
    if acked is not None and (observation.kept is not None or observation.last < acked.last):
        return EpochReason.RESTORED
    if remembered.checkpoint is not None and observation.id_at_checkpoint not in (
        None,
        remembered.checkpoint.message_id,
    ):
        return EpochReason.RESTORED
    if remembered.epoch is None:
        return EpochReason.FIRST if observation.last == 0 else EpochReason.STATE_LOST
    return None


def _start(remembered: RememberedStream, observation: EpochObservation) -> int:
    checkpoint, acked = remembered.checkpoint, remembered.acked
    if checkpoint is None or acked is None or acked.created != observation.created:
        return 1
    held = (
        checkpoint.leaf_seq if observation.id_at_checkpoint == checkpoint.message_id else observation.earlier
    )
    return held + 1
