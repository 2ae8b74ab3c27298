"""A PubAck `duplicate: true` names the message that a stream holds under an id. Whose message that is the id
does not tell: everybody who may publish to the stream may use any id, and what an agent's will be can be
guessed from the one before. The subjects of the agent are its own, so they do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from agent.contract import H_MESSAGE_ID
from agent.jetstream import RawMessage
from agent.leaf.publish.batch import Batch

Look = Callable[[str, int], Awaitable[RawMessage | None]]
"""The message of a class's stream at a sequence, None where none is. Raises `JetStreamError`."""

TAKEN = "message_id_taken"
"""The reason for which a number is refused under which something else stands in the stream. Its batch is
stored under a later one."""


def is_own(batch: Batch, message: RawMessage | None) -> bool:
    """Whether the message that was named as a duplicate of a batch is that batch. `message` is None where the
    stream does not hold it any more. Then it can only be the batch if an earlier connection had sent that,
    for over this one every attempt was answered, and none as stored; it is taken to be, for a batch that is
    called stored and does not arrive is named by the audit, and one that is stored twice is not."""
    if message is None:
        return batch.carried
    return (
        message.subject == batch.subject
        and message.headers.get(H_MESSAGE_ID) == str(batch.id)
        and message.data == batch.payload
    )
