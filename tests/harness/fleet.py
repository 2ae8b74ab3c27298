"""A leaf of several classes by hand, and what the hub holds of each of its streams."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from nats.errors import Error as NatsError

from agent.contract import H_MESSAGE_ID, H_SOURCE, Answer
from agent.hub.registrar.aggregate import parse_source_header
from agent.jetstream import JetStream, JetStreamError
from tests.harness.registrar import LeafHand
from tests.harness.servers import Leaf
from tests.harness.streams import stored_messages


class Member:
    """One leaf with a `LeafHand` for each class. All announce themselves together, as one run."""

    def __init__(self, hands: dict[str, LeafHand]) -> None:
        self.hands = hands
        self._first = next(iter(hands.values()))
        self.domain = self._first.domain
        for hand in hands.values():
            hand.run = self._first.run

    @classmethod
    async def make(cls, leaf: Leaf, classes: Sequence[str]) -> Member:
        """With its streams and link consumers."""
        return cls({name: await LeafHand.make(leaf, name) for name in classes})

    async def store(self, count: int, size: int = 0) -> None:
        """So many batches in each class, padded to `size` bytes."""
        await asyncio.gather(*(hand.store(count, size) for hand in self.hands.values()))

    async def begin_anew(self) -> None:
        """A new epoch for each class."""
        for hand in self.hands.values():
            await hand.next_epoch(hand.sent + 1)

    async def announce(self) -> Answer:
        """The answer, once the hub's registrar takes the leaf."""
        while True:
            try:
                each = [await hand.announcement() for hand in self.hands.values()]
                classes = {name: state for one in each for name, state in one.classes.items()}
                answer = await self._first.say(replace(each[0], classes=classes).encode())
            except (NatsError, JetStreamError):
                await asyncio.sleep(0.1)
                continue
            if answer.refused is None:
                return answer
            await asyncio.sleep(1.0)


async def ids_in(js: JetStream, stream: str) -> dict[str, list[str]]:
    """The ids of all messages of an aggregate, by the leaf's stream, in its order."""
    ids: dict[str, list[str]] = {}
    for message in await stored_messages(js, stream):
        name, _ = parse_source_header(message.headers[H_SOURCE])
        ids.setdefault(name, []).append(message.headers[H_MESSAGE_ID])
    return ids
