"""Purges committed messages from aggregates.

A killed server knows a source's place only from its newest message, so positions are stored before. Recorded
places are compared before their messages go.
"""

from __future__ import annotations

from typing import Any

import structlog

from agent.base.wait import bounded_gather
from agent.contract import Checkpoint, Committed, ContractError, leaf_stream, parse_committed
from agent.hub.cells import CellStreams
from agent.hub.registrar.aggregate import Observation, purge_up_to
from agent.hub.registrar.aggregates import Aggregates
from agent.hub.registrar.answer import contradicted, names, remembered
from agent.hub.registrar.durability import Durability
from agent.hub.registrar.fleet_store import FleetStore
from agent.hub.registrar.held_messages import HeldMessages
from agent.hub.registrar.lake_keeper import LakeKeeper
from agent.hub.registrar.metrics import RegistrarMetrics
from agent.hub.registrar.records import ClassRecord, LeafRecord, PurgeMarker
from agent.jetstream import StreamInfo, nanoseconds

log = structlog.get_logger("registrar")


class Purging:
    """Purges aggregates, keeping `keep` messages for checkpoints."""

    def __init__(
        self,
        streams: CellStreams,
        keep: int,
        store: FleetStore,
        aggregates: Aggregates,
        held: HeldMessages,
        metrics: RegistrarMetrics,
        durability: Durability,
        lake: LakeKeeper,
    ) -> None:
        self._streams = streams
        self._keep = keep
        self._fleet = held.fleet
        self._store = store
        self._aggregates = aggregates
        self._held = held
        self._metrics = metrics
        self._durability = durability
        self._lake = lake

    async def answer(self, stream: str, data: bytes) -> dict[str, Any]:
        """Purge a commit or report the synced end; `stream` is the subject's. Raises `ContractError`,
        `ApiError` or `UnavailableError`.
        """
        committed = parse_committed(data)
        if committed.stream != stream:
            raise ContractError(f"committed: {committed.stream!r} came on the subject of {stream!r}")
        if stream not in self._aggregates.controllers:
            raise ContractError(f"committed: there is no aggregate {stream!r} here")
        return {"purged": await self._purge(committed)} if committed.seq else await self._synced(stream)

    async def _synced(self, stream: str) -> dict[str, Any]:
        """Return the synced end, after a sync."""
        info = (await self._aggregates.controllers[stream].observe()).info
        await self._durability.sync()
        return {"created": info.created, "synced": min(info.last, self._durability.synced(info))}

    async def _purge(self, committed: Committed) -> int:
        """Purge as far as allowed; returns the number."""
        stream = committed.stream
        seen = await self._aggregates.controllers[stream].observe()
        up_to = purge_up_to(committed, seen.info, self._keep)
        await self._lake.admit(committed)
        if up_to < seen.info.first:
            return 0
        await self._remember(seen, up_to)
        up_to = min(up_to, await self._held.gaps.read_up_to(self._fleet.records(stream), seen))
        if up_to < seen.info.first:
            return 0
        # That takes a while with many leaves: by now the aggregate may be another one, or restored.
        purge_up_to(committed, (await self._aggregates.controllers[stream].observe()).info, self._keep)
        await self._check_message(committed)
        purged = await self._streams.of(stream).purge(stream, up_to)
        self._metrics.purged.labels(stream).inc(purged)
        log.info("committed messages purged", stream=stream, messages=purged, up_to=up_to)
        return purged

    async def _check_message(self, committed: Committed) -> None:
        """Raise `ContractError` if another message has the committed sequence, as after a restore."""
        stream, seq = committed.stream, committed.seq
        js = self._streams.of(stream)
        message = await js.get_message(stream, seq=seq) if committed.arrived else None
        if message is not None and nanoseconds(message.time) // 1000 != committed.arrived:
            raise ContractError(
                f"committed: message {seq} of {stream} is not the one that was committed: "
                "the hub was restored from a copy; the next ingest reads what came since"
            )

    async def _remember(self, seen: Observation, up_to: int) -> None:
        """Store positions of leaves whose newest message goes."""
        info = seen.info
        self._fleet.note(seen)

        async def look(one: tuple[LeafRecord, str, ClassRecord]) -> None:
            leaf, cls, _ = one
            await self._held.remember(leaf.domain, cls, seen)

        await bounded_gather(look, [entry for entry in self._fleet.records(info.name) if _is_open(entry[2])])
        contradictions = await self._compare(info, up_to)
        going = {
            leaf.domain
            for leaf, _, record in self._fleet.records(info.name)
            if record.unsure or record.lost or (record.held is not None and record.held.hub_seq <= up_to)
        }
        await bounded_gather(lambda domain: self._store.save_changed(self._fleet.leaves[domain]), going)
        if contradictions:
            await self._durability.sync()
        noted = PurgeMarker(info.name, info.created, info.last)
        await self._store.note(noted)
        self._fleet.purging(noted)

    async def _compare(self, info: StreamInfo, up_to: int) -> bool:
        """Compare recorded places before their purge; returns whether any differs."""
        proven = self._held.proven
        unproven = [
            (leaf.domain, cls, known)
            for leaf, cls, record in self._fleet.records(info.name)
            if record.stream_created == info.created and not record.lost
            for known in remembered(record)
            if known.hub_stream == info.name
            and info.first <= known.hub_seq <= up_to
            and not proven.holds(leaf.domain, cls, known, info)
        ]

        async def differs(place: tuple[str, str, Checkpoint]) -> bool:
            domain, cls, known = place
            message = await self._streams.of(info.name).get_message(info.name, seq=known.hub_seq)
            if message is None or names(known, message, leaf_stream(domain, cls)):
                return False
            record = self._fleet.record(domain, cls)
            if record is not None and known in remembered(record):
                log.warning("record contradicted by its stream", stream=info.name, leaf=domain, place=known)
                self._fleet.put(domain, cls, contradicted(record, known))
            return True

        return any(await bounded_gather(differs, unproven))


def _is_open(record: ClassRecord) -> bool:
    """Tell whether an epoch's newest message is unknown."""
    return record.held is not None and not (record.held.message_id or record.held.hub_seq)
