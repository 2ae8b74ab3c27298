"""Checks the fleet each second: silence, time to full, stored records.

A large fleet is excluded from garbage collection, which would block the loop, so an ended registrar is freed
by hand (`dissolve`).
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec
import structlog

from agent.base.files import room
from agent.base.wait import Pacer, loop_time
from agent.hub.registrar.aggregates import Aggregates
from agent.hub.registrar.exchanges import Exchanges
from agent.hub.registrar.fleet_state import FleetState
from agent.hub.registrar.fleet_store import FleetStore
from agent.hub.registrar.fleet_watch import FleetWatch
from agent.hub.registrar.gaps import GapSearch
from agent.hub.registrar.metrics import RegistrarMetrics
from agent.hub.registrar.problems import ActiveProblems
from agent.hub.registrar.time_to_full import TimeToFull
from agent.jetstream import JetStreamError

_LOOK_SECONDS: Final = 1.0
_COMPARE_SECONDS: Final = 60.0
"""Interval of comparing stored records."""
_SPARE_SECONDS: Final = 0.1
_YOUNG: Final = 10_000
"""Objects per collection, some milliseconds."""

log = structlog.get_logger("registrar")


class Upkeep:
    """Updates the fleet's gauges; `disk` is the server's store, None if elsewhere."""

    def __init__(
        self,
        fleet: FleetState,
        store: FleetStore,
        aggregates: Aggregates,
        watch: FleetWatch,
        problems: ActiveProblems,
        metrics: RegistrarMetrics,
        disk: Path | None,
        gaps: GapSearch,
    ) -> None:
        self._fleet, self._store, self._aggregates, self._watch = fleet, store, aggregates, watch
        self._problems, self._metrics, self._disk, self._gaps = problems, metrics, disk, gaps
        self._time_to_full = TimeToFull()
        self._silent: set[str] = set()

    async def run(self) -> None:
        """Check until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._spare_collections())
            await self._look()

    async def _spare_collections(self) -> None:
        while True:
            spare_collections()
            await asyncio.sleep(_SPARE_SECONDS)

    async def _look(self) -> None:
        compare_at = loop_time() + _COMPARE_SECONDS
        while True:
            self._look_ahead()
            for seen in self._aggregates.seen().values():
                self._gaps.note(seen)
            for domain in self._fleet.ownership.settled(loop_time()):
                self._problems.end(f"rival of {domain}", f"{domain} is announced by one machine only")
            news = await self._look_for_silent()
            try:
                await self._remember(news)
                if loop_time() >= compare_at:
                    compare_at = loop_time() + _COMPARE_SECONDS
                    await self._store.check()
            except JetStreamError as error:
                log.info("records are compared later", reason=str(error))
            await asyncio.sleep(_LOOK_SECONDS)

    def ahead(self) -> dict[str, str]:
        """Return each aggregate's time to full, in a sentence."""
        now, free = loop_time(), self._free()
        return {name: self._time_to_full.words(name, free, now) for name in self._time_to_full.names()}

    def committed(self, stream: str) -> None:
        """Note a commit."""
        self._time_to_full.committed(stream, loop_time())

    async def _look_for_silent(self) -> set[str]:
        """Update gauges; returns newly silent leaves."""
        before, self._silent = self._silent, await self._fleet.silent(loop_time())
        linked = self._watch.links.domains()
        self._metrics.leaves.set(len(self._fleet.leaves))
        self._metrics.linked.set(len(linked))
        self._metrics.silent.set(len(linked & self._silent))
        pacer = Pacer()
        for domain in self._silent if self._fleet.resting else ():
            await pacer.give_way()
            if (leaf := self._fleet.leaves.get(domain)) is not None:
                # Programs may still publish beside an agent that is dead.
                self._aggregates.wake(domain, leaf.classes)
        return self._silent - before

    async def _remember(self, silent: Iterable[str]) -> None:
        """Store these leaves' last announcement times."""
        leaves, pacer = [], Pacer()
        for domain in silent:
            await pacer.give_way()
            if (leaf := self._fleet.leaves.get(domain)) is None:
                continue  # the records were read back meanwhile, from a store of before this leaf
            heard = self._fleet.announced_at(domain, loop_time())
            if heard != leaf.announced_at:
                leaves.append(msgspec.structs.replace(leaf, announced_at=heard))
                self._fleet.keep(leaves[-1])
        await self._store.save_all(leaves)

    def _look_ahead(self) -> None:
        """Update the time to full."""
        now, free = loop_time(), self._free()
        seen = self._aggregates.seen()
        self._time_to_full.see((observation.info for observation in seen.values()), now)
        for name in seen:
            self._metrics.seconds_to_full.labels(name).set(self._time_to_full.seconds(name, free))
            self._metrics.since_commit.labels(name).set(self._time_to_full.since_commit(name, now))

    def _free(self) -> int | None:
        """Return free bytes above the reserve, None if elsewhere."""
        left = None if self._disk is None else room(self._disk)
        return None if left is None else max(0, left.free - left.reserve)


def spare_collections() -> None:
    """Freeze a large fleet against full collections of a tenth of a second."""
    if len(gc.get_objects(generation=2)) > _YOUNG:
        gc.collect()  # what is garbage now would stay, too
        gc.freeze()


_PARTS: Final = __name__.rpartition(".")[0]
_LARGE: Final = (FleetState, FleetStore, Exchanges, GapSearch)
"""Holders of all records, which give copies only."""


async def dissolve(registrar: object) -> None:
    """Free an ended registrar, yielding to the loop."""
    parts, pacer = _parts(registrar), Pacer()
    for part in parts:
        for known in list(vars(part).values()) if isinstance(part, _LARGE) else ():
            while isinstance(known, dict) and known:
                known.popitem()
                await pacer.give_way()
    for part in parts:
        vars(part).clear()
        await pacer.give_way()


def _parts(registrar: object) -> list[object]:
    found: dict[int, object] = {}
    waiting = [registrar]
    while waiting:
        part = waiting.pop()
        if id(part) not in found:
            found[id(part)] = part
            for known in vars(part).values():
                waiting += filter(_is_part, known.values() if isinstance(known, dict) else (known,))
    return list(found.values())


def _is_part(known: object) -> bool:
    return type(known).__module__.startswith(_PARTS) and hasattr(known, "__dict__")
