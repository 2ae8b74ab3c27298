"""The fleet in the key-value bucket of the hub: one record a leaf and one an aggregate, the newest only."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

import msgspec

from agent.base.wait import bounded_gather, loop_time
from agent.contract import FLEET_BUCKET, ContractError
from agent.hub.registrar.active_problems import ActiveProblems
from agent.hub.registrar.aggregate import fleet_config
from agent.hub.registrar.records import LeafRecord, PurgeMarker, decode_leaf, decode_noted, encode
from agent.jetstream import JetStream

_STREAM: Final = f"KV_{FLEET_BUCKET}"
_LET_IN: Final = f"$KV.{FLEET_BUCKET}.let.in"

Record = TypeVar("Record")


class FleetStore:
    """Reads and writes the records; knows nothing of what they mean."""

    def __init__(self, js: JetStream, replicas: int, problems: ActiveProblems) -> None:
        self._js = js
        self._replicas = replicas
        self._problems = problems
        self._stored: dict[str, tuple[LeafRecord, float]] = {}

    async def ensure(self) -> None:
        """Make the bucket. Raises `ApiError` or `UnavailableError`."""
        self._stored.clear()
        await self._js.ensure_stream(fleet_config(self._replicas))

    async def save(self, leaf: LeafRecord) -> None:
        """Replace the record of a leaf. Raises `ApiError` or `UnavailableError`."""
        await self._js.publish(_subject(leaf.domain), encode(leaf))
        self._stored[leaf.domain] = (leaf, loop_time())

    async def save_changed(self, leaf: LeafRecord, every: float) -> None:
        """The same if anything but the time of its announcement is new, or so many seconds have passed."""
        old, at = self._stored.get(leaf.domain, (None, 0.0))
        same = old is not None and msgspec.structs.replace(old, announced_at=leaf.announced_at) == leaf
        if not same or loop_time() - at >= every:
            await self.save(leaf)

    async def save_all(self, leaves: Iterable[LeafRecord]) -> None:
        """Replace these records, several at once. Raises `ApiError` or `UnavailableError`."""
        await bounded_gather(self.save, leaves)

    async def note(self, noted: PurgeMarker) -> None:
        """Replace what is noted of an aggregate. Raises `ApiError` or `UnavailableError`."""
        await self._js.publish(_noted_subject(noted.stream), encode(noted))

    async def load(self, domains: Iterable[str]) -> dict[str, LeafRecord]:
        """The records of these domains; one that cannot be read is said and left out, for the leaf's next
        announcement writes it again. Raises `ApiError` or `UnavailableError`."""
        found = await bounded_gather(
            lambda domain: self._load(_subject(domain), domain, decode_leaf), domains
        )
        return {leaf.domain: leaf for leaf in found if leaf is not None}

    async def load_noted(self, streams: Iterable[str]) -> dict[str, PurgeMarker]:
        """What is noted of these aggregates. Raises `ApiError` or `UnavailableError`."""
        found = await bounded_gather(
            lambda name: self._load(_noted_subject(name), name, decode_noted), streams
        )
        return {marker.stream: marker for marker in found if marker is not None}

    async def let_in(self) -> frozenset[str] | None:
        """The keys that were let in when this was stored last, None where it never was. Raises `ApiError` or
        `UnavailableError`."""
        message = await self._js.get_message(_STREAM, last_by_subject=_LET_IN)
        return None if message is None else frozenset(message.data.decode(errors="replace").split())

    async def save_let_in(self, keys: Iterable[str]) -> None:
        """Replace the keys that are let in. Raises `ApiError` or `UnavailableError`."""
        await self._js.publish(_LET_IN, "\n".join(sorted(keys)).encode())

    async def _load(self, subject: str, what: str, decode: Callable[[bytes], Record]) -> Record | None:
        message = await self._js.get_message(_STREAM, last_by_subject=subject)
        if message is None or not message.data:
            return None
        try:
            return decode(message.data)
        except ContractError as error:
            self._problems.begin(f"record of {what}", f"the hub's record of {what} cannot be read: {error}")
            return None


def _subject(domain: str) -> str:
    return f"$KV.{FLEET_BUCKET}.{domain}"


def _noted_subject(stream: str) -> str:
    # A domain has no dot, so this cannot be one.
    return f"$KV.{FLEET_BUCKET}.noted.{stream}"
