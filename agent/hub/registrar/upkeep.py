"""What the registrar looks at each second for the whole fleet: who is silent, how long until the hub is full,
and whether the stored records are still there. It takes some milliseconds for thousands of leaves.

All of a large fleet is kept from the garbage collector, which would hold up the event loop for as long as it
looks at it. So what a registrar that has ended knew is freed by hand (`dissolve`): the records go one at a
time, and the parts of the registrar, which know each other in circles, let go of each other.
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
"""From one comparison of the stored records with what was stored to the next."""
_SPARE_SECONDS: Final = 0.1
_YOUNG: Final = 10_000
"""Objects that a collection may look at: some milliseconds."""

log = structlog.get_logger("registrar")


class Upkeep:
    """Keeps the gauges of the fleet; `disk` is where the hub's server has its streams, None where that is not
    this machine."""

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
        """Look until cancelled."""
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
        """How long until each aggregate is full, in a sentence."""
        now, free = loop_time(), self._free()
        return {name: self._time_to_full.words(name, free, now) for name in self._time_to_full.names()}

    def committed(self, stream: str) -> None:
        """`ingest` said how far it has committed an aggregate."""
        self._time_to_full.committed(stream, loop_time())

    async def _look_for_silent(self) -> set[str]:
        """Keep the gauges; returns the leaves whose agents have become silent since the last look."""
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
        """Store when these leaves announced themselves last: while nothing is new that is in memory only."""
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
        """See how long until the hub is full."""
        now, free = loop_time(), self._free()
        seen = self._aggregates.seen()
        self._time_to_full.see((observation.info for observation in seen.values()), now)
        for name in seen:
            self._metrics.seconds_to_full.labels(name).set(self._time_to_full.seconds(name, free))
            self._metrics.since_commit.labels(name).set(self._time_to_full.since_commit(name, now))

    def _free(self) -> int | None:
        """Bytes above the reserve on the disk of the hub's server, None where that is not this machine's."""
        left = None if self._disk is None else room(self._disk)
        return None if left is None else max(0, left.free - left.reserve)


def spare_collections() -> None:
    """Have the garbage collector let alone what has come to stay, once that is much: at each full collection
    it would look at all of a large fleet, and hold up the loop for a tenth of a second."""
    if len(gc.get_objects(generation=2)) > _YOUNG:
        gc.collect()  # what is garbage now would stay, too
        gc.freeze()


_PARTS: Final = __name__.rpartition(".")[0]
_LARGE: Final = (FleetState, FleetStore, Exchanges, GapSearch)
"""What holds a record of each leaf, and hands out copies only."""


async def dissolve(registrar: object) -> None:
    """Free a registrar, of which nothing is of use afterwards; the loop runs meanwhile."""
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
    """The registrar and all of its parts, each once."""
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
