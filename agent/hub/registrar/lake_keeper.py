"""Keeps the hub's lake in the fleet's bucket, so it is replicated and restored with the streams."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime

import structlog
from nats.aio.msg import Msg

from agent.contract import (
    NEW_LAKE,
    VERSION,
    Adoption,
    Committed,
    ContractError,
    HubLake,
    adopted,
    other_lake,
    parse_adoption,
    reported,
    stored_lake,
)
from agent.hub.registrar.fleet_store import FleetStore
from agent.hub.registrar.problems import Readiness
from agent.jetstream import JetStreamError, respond

log = structlog.get_logger("registrar")


class LakeKeeper:
    """Knows the lake; `known` None before its first report."""

    def __init__(self, store: FleetStore, readiness: Readiness) -> None:
        self._store, self._readiness = store, readiness
        self.known: HubLake | None = None
        self._changing = asyncio.Lock()

    async def begin(self) -> None:
        """Load the record. Raises `ApiError` or `UnavailableError`."""
        stored = stored_lake(await self._store.load_lake())
        if stored is None and self.known is not None:
            await self._store.save_lake(self.known.encode())  # the bucket was recreated
            return
        self.known = stored

    async def admit(self, committed: Committed) -> None:
        """Store a lake's commit. Raises `ContractError` for another lake, `ApiError`
        or `UnavailableError`.
        """
        async with self._changing:
            await self._admit(committed)

    async def _admit(self, committed: Committed) -> None:
        if why := other_lake(self.known, committed.lake, committed.place):
            raise ContractError(f"nothing is purged: {why}")
        before = self.known
        done = committed.created, committed.seq
        at = datetime.now(UTC)
        after = reported(before, committed.lake, committed.place, at, committed.stream, done)
        if before is not None and (before.id, before.place, before.streams) == (
            after.id,
            after.place,
            after.streams,
        ):
            return
        await self._keep(after)
        if before is None or before.id == NEW_LAKE:
            log.info("lake accepted", lake=after.id, place=after.place)

    async def receive(self, msg: Msg) -> None:
        """Answer a person's question or adoption."""
        row: dict[str, object] = {"v": VERSION}
        try:
            await self._readiness.wait()
            word = parse_adoption(msg.data)
            if word.lake:
                await self._adopt(word)
            row["lake"] = None if self.known is None else self.known.as_row()
        except (ContractError, JetStreamError) as error:
            log.warning("lake refused", reason=str(error))
            row["refused"] = str(error)
        await respond(msg, json.dumps(row).encode())

    async def _adopt(self, word: Adoption) -> None:
        async with self._changing:
            await self._keep(adopted(self.known, word, datetime.now(UTC)))
        log.warning("lake adopted", lake=word.lake, instead_of=word.instead_of)

    async def _keep(self, lake: HubLake) -> None:
        await self._store.save_lake(lake.encode())
        self.known = lake
