"""Compares the stream with the agent's memory before the first publish. Pure.

A wiped or restored stream would lose data over its old consumer.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from agent.contract import Checkpoint
from agent.leaf.state import Acked


class EpochReason(StrEnum):
    """The reason of an epoch, as metric label."""

    FIRST = "first_start"
    STATE_LOST = "state_lost"
    RECREATED = "stream_recreated"
    RESTORED = "stream_put_back"
    CONSUMER_GONE = "consumer_gone"
    HUB_LOST = "hub_lost"
    DIFFERENT = "different"
    STALLED = "stalled"


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
}


class RememberedStream(Struct, frozen=True):
    """A class in the state file."""

    epoch: str | None
    acked: Acked | None
    checkpoint: Checkpoint | None


class EpochObservation(Struct, frozen=True):
    """The stream by its server."""

    created: str
    """Identifies the stream."""
    last: int
    """Last sequence."""
    id_at_checkpoint: str | None
    """Id at the checkpoint: "" without id, None if trimmed."""
    kept: int | None = None
    """A restored store's last kept sequence."""
    earlier: int = 0
    """Its newest held checkpoint, 0 for none."""


class NewEpoch(Struct, frozen=True):
    """Begin a new epoch."""

    reason: EpochReason
    start: int
    """First leaf sequence."""
    lost: tuple[int, int] | None = None
    """First and last sequence missing on both sides."""

    def sentence(self) -> str:
        """Return the reason and the loss."""
        if self.lost is None:
            return SENTENCES[self.reason]
        first, last = self.lost
        return (
            f"{SENTENCES[self.reason]}; messages {first} to {last} are in neither stream any more, the audit "
            "says which of them are in the table"
        )


def judge(remembered: RememberedStream, observation: EpochObservation) -> NewEpoch | None:
    """Return the needed epoch, or None. It starts after the last agreed message; the table
    drops duplicates.
    """
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
