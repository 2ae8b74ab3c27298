"""Storing a message once although anybody may have used its id before."""

from __future__ import annotations

import secrets

from agent.contract import H_MESSAGE_ID
from agent.jetstream import JetStream


async def publish_own(js: JetStream, stream: str, subject: str, data: bytes, ident: str) -> int:
    """Store one of the agent's own messages once, under an id or, where that is taken by another message, one
    that nobody can guess; returns its sequence. Raises `ApiError`, `TooLargeError` or `UnavailableError`."""
    ack = await js.publish_ack(subject, data, {H_MESSAGE_ID: ident})
    if not ack.duplicate:
        return ack.seq
    message = await js.get_message(stream, seq=ack.seq)
    if message is not None and (message.subject, message.data) == (subject, data):
        return ack.seq
    return await js.publish(subject, data, {H_MESSAGE_ID: f"{ident}-{secrets.token_hex(16)}"})
