"""Stores a command in the hub's stream of commands, and finds its answer among the arriving readings. Keeps
no state."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from typing import Final

import zstandard

from agent.contract import (
    COMMANDS_INPUT,
    H_ENCODING,
    H_MESSAGE_ID,
    MAX_UNPACKED_BYTES,
    Command,
    CommandAnswer,
    ContractError,
    answer_in,
    batch_subject,
    command_subject,
    parse_reading,
)
from agent.jetstream import STREAM_NOT_FOUND, ApiError, JetStream, RawMessage

KEPT: Final = 7 * 86400.0
"""Seconds in which a leaf that is back after a command has expired still answers that it has."""
LOOK_SECONDS: Final = 0.2
_TTL: Final = "Nats-TTL"
"""How long the server keeps a message (ADR-43 of NATS)."""


async def store(js: JetStream, domain: str, app: str, verb: str, command: Command) -> int:
    """Store a command for a program on a leaf; returns its sequence. The hub keeps it for `KEPT` after it
    has expired. Raises `JetStreamError`."""
    headers = {H_MESSAGE_ID: command.id}
    if command.expires is not None:
        headers[_TTL] = f"{max(1, round(command.expires - time.time() + KEPT))}s"
    return await js.publish(command_subject(domain, app, verb), command.encode(), headers)


class AnswerWatch:
    """Watches the aggregates for the answer to a command."""

    def __init__(self, js: JetStream, streams: Iterable[str], domain: str) -> None:
        self._js = js
        self._subject = batch_subject(domain, "*", COMMANDS_INPUT)
        self._next = dict.fromkeys(streams, 0)

    async def begin(self) -> None:
        """Skip what the streams hold already; call it before the command is stored. Raises
        `JetStreamError`."""
        for stream in self._next:
            self._next[stream] = await self._last(stream) + 1

    async def answer(self, ident: str) -> CommandAnswer:
        """Wait for the answer to the command of this id; the caller bounds the wait. Raises
        `JetStreamError`."""
        while True:
            for stream in self._next:
                async for message in self._new(stream):
                    for answer in answers_in(message):
                        if answer.id == ident:
                            return answer
            await asyncio.sleep(LOOK_SECONDS)

    async def _new(self, stream: str) -> AsyncIterator[RawMessage]:
        """The answers' batches that have come since the last look."""
        last = await self._last(stream)
        while self._next[stream] <= last:
            message = await self._js.get_message(
                stream, seq=self._next[stream], next_by_subject=self._subject
            )
            if message is None:
                self._next[stream] = last + 1
                return
            self._next[stream] = message.seq + 1
            yield message

    async def _last(self, stream: str) -> int:
        """The last sequence of a stream; 0 where the registrar has not made it yet."""
        try:
            return (await self._js.stream_info(stream)).last
        except ApiError as error:
            if error.err_code != STREAM_NOT_FOUND:
                raise
            return 0


def answers_in(message: RawMessage) -> list[CommandAnswer]:
    """The answers to commands in a batch."""
    data = message.data
    try:
        if H_ENCODING in message.headers:
            data = zstandard.ZstdDecompressor().decompress(data, max_output_size=MAX_UNPACKED_BYTES)
        answers = [answer_in(parse_reading(line)) for line in data.splitlines()]
    except (zstandard.ZstdError, ContractError):
        return []
    return [answer for answer in answers if answer is not None]
