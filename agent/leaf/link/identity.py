"""Recognises a leaf's stream that its server recreated over its messages.

nats-server skips a stream with damaged `meta.inf` or `meta.sum`, and a new one then has the old messages
under another creation time (`findings/nats-damaged-meta-file-gives-old-messages-to-a-new-stream.sh`). Direct
messages' keys contain that time, so all would be stored again. Remove this module when the server recovers
such streams.
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
    """Return a class's stream with its messages' identity, which `js` reports from then on.

    Raises `ApiError` or `UnavailableError`.
    """
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
    """Return the stream identity in the newest ledger record, "" if unusable or copied from
    another stream.
    """
    if message is None:
        return ""
    try:
        stream = contract.parse_ledger(message.data).stream
    except ContractError:
        return ""
    return stream.created if stream.last < message.seq else ""


async def _holds(js: JetStream, info: StreamInfo, cls: str, acked: Acked, current: State) -> bool:
    """Tell whether the stream has a message of the one that acknowledged last."""
    if acked.top_time:
        newest = await js.get_message(info.name, seq=acked.top)
        if newest is not None and nanoseconds(newest.time) == nanoseconds(acked.top_time):
            return True
    checkpoint = current.checkpoint.get(cls)
    if checkpoint is not None and await message_id(js, info.name, checkpoint) == checkpoint.message_id:
        return True
    return bool(await newest_checkpoint_held(js, info, earlier_checkpoints(current.earlier.get(cls, []))))


async def newest_checkpoint_held(js: JetStream, info: StreamInfo, candidates: Sequence[Checkpoint]) -> int:
    """Return the leaf sequence of the newest held checkpoint (sorted candidates), 0 for none.

    Raises `ApiError` or `UnavailableError`.
    """
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
    """Return the leaf's message id at a checkpoint, or None."""
    if checkpoint is None:
        return None
    message = await js.get_message(stream, seq=checkpoint.leaf_seq)
    return None if message is None else message.headers.get(H_MESSAGE_ID, "")
