"""Recognises a leaf's stream by its messages when its server created it anew over them.

A server knows a stream by its time of creation, which is in its `meta.inf`. nats-server skips a stream
whose `meta.inf` or `meta.sum` is missing or damaged, as after a power cut
(`findings/nats-damaged-meta-file-gives-old-messages-to-a-new-stream.sh`). A stream that
is then created under that name holds the old messages, under another time. The key of a device's message at
the hub has this time in it, so all of them would be stored once more. This module may go once the server
recovers such a stream.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from agent import contract
from agent.contract import H_MESSAGE_ID, Checkpoint, ContractError
from agent.jetstream import JetStream, RawMessage, StreamInfo, nanoseconds
from agent.leaf.state import Acked, MadeAgain, State, earlier_checkpoints
from agent.leaf.state_file import StateFile

log = structlog.get_logger("link")


async def recognise(js: JetStream, domain: str, cls: str, info: StreamInfo, state: StateFile) -> StreamInfo:
    """Return the stream of a class under the identity of the messages that it holds; from now on `js` reports
    it so. Raises `ApiError` or `UnavailableError`."""
    current = state.current
    acked, known = current.acked.get(cls), current.made_again.get(cls)
    if not info.messages or (acked is not None and acked.created == info.created):
        return info
    if known is not None and known.made == info.created:
        created = known.created
    else:
        subject = contract.ledger_subject(domain, cls)
        created = recorded_identity(await js.get_message(info.name, last_by_subject=subject))
        if not created and acked is not None and await _holds(js, info, cls, acked, current):
            created = acked.created
        if created in ("", info.created):
            return info
        current.made_again[cls] = MadeAgain(info.created, created)
        state.mark()
        log.warning(
            "stream created anew over its messages", **{"class": cls}, created=info.created, before=created
        )
    js.continues(info.name, info.created, created)
    return await js.stream_info(info.name)


def recorded_identity(message: RawMessage | None) -> str:
    """Return which stream the newest ledger record says that it is stored in; "" without a usable record.
    Behind its own place it can't know of messages: such a record was copied into another stream."""
    if message is None:
        return ""
    try:
        stream = contract.parse_ledger(message.data).stream
    except ContractError:
        return ""
    return stream.created if stream.last < message.seq else ""


async def _holds(js: JetStream, info: StreamInfo, cls: str, acked: Acked, current: State) -> bool:
    """Whether the stream holds a message that the agent saw in the one that acknowledged last."""
    if acked.top_time:
        newest = await js.get_message(info.name, seq=acked.top)
        if newest is not None and nanoseconds(newest.time) == nanoseconds(acked.top_time):
            return True
    checkpoint = current.checkpoint.get(cls)
    if checkpoint is not None and await message_id(js, info.name, checkpoint) == checkpoint.message_id:
        return True
    return bool(await newest_checkpoint_held(js, info, earlier_checkpoints(current.earlier.get(cls, []))))


async def newest_checkpoint_held(js: JetStream, info: StreamInfo, candidates: Sequence[Checkpoint]) -> int:
    """The leaf sequence of the newest checkpoint whose message the stream holds, 0 if it holds none; the
    candidates are sorted, the oldest first. A restored store holds those from before its backup. Raises
    `ApiError` or `UnavailableError`."""
    held, low, high = 0, 0, len(candidates)
    while low < high:
        middle = (low + high) // 2
        checkpoint = candidates[middle]
        if checkpoint.leaf_seq < info.first:
            low = middle + 1
        elif await message_id(js, info.name, checkpoint) == checkpoint.message_id:
            held, low = checkpoint.leaf_seq, middle + 1
        else:
            high = middle
    return held


async def message_id(js: JetStream, stream: str, checkpoint: Checkpoint | None) -> str | None:
    """The id of the leaf's own message at a checkpoint's sequence; None without a message."""
    if checkpoint is None:
        return None
    message = await js.get_message(stream, seq=checkpoint.leaf_seq)
    return None if message is None else message.headers.get(H_MESSAGE_ID, "")
