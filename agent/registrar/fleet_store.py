"""The fleet in the key-value bucket of the hub: one record a leaf, the newest only."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from agent.contract import FLEET_BUCKET, ContractError
from agent.jetstream import JetStream
from agent.registrar.aggregate import fleet_config
from agent.registrar.fleet import Leaf, decode_leaf, encode_leaf
from agent.registrar.problems import Problems

_STREAM: Final = f"KV_{FLEET_BUCKET}"
_AT_ONCE: Final = 32


class FleetStore:
    """Reads and writes the records; knows nothing of what they mean."""

    def __init__(self, js: JetStream, problems: Problems) -> None:
        self._js = js
        self._problems = problems

    async def ensure(self) -> None:
        """Make the bucket. Raises `ApiError` or `UnavailableError`."""
        await self._js.ensure_stream(fleet_config())

    async def save(self, leaf: Leaf) -> None:
        """Replace the record of a leaf. Raises `ApiError` or `UnavailableError`."""
        await self._js.publish(_subject(leaf.domain), encode_leaf(leaf))

    async def load(self, domains: Iterable[str]) -> dict[str, Leaf]:
        """The records of these domains; one that cannot be read is said and left out, for the leaf's next
        announcement writes it anew. Raises `ApiError` or `UnavailableError`."""
        places = asyncio.Semaphore(_AT_ONCE)

        async def one(domain: str) -> Leaf | None:
            async with places:
                return await self._load(domain)

        found = await asyncio.gather(*(one(domain) for domain in domains))
        return {leaf.domain: leaf for leaf in found if leaf is not None}

    async def _load(self, domain: str) -> Leaf | None:
        message = await self._js.get_message(_STREAM, last_by_subject=_subject(domain))
        if message is None or not message.data:
            return None
        try:
            return decode_leaf(message.data)
        except ContractError as error:
            self._problems.begin(
                f"record of {domain}", f"the hub's record of {domain} cannot be read: {error}"
            )
            return None


def _subject(domain: str) -> str:
    return f"$KV.{FLEET_BUCKET}.{domain}"
