"""Assigns leaves' sources to aggregates, and rests idle classes.

An assignment is stored and stays while the leaf is in one cell, as a move restarts the epoch. An idle class's
source is dropped to save heartbeats and readded at its first reading. That scan stops the aggregate for 35
microseconds a message, so classes rest only while cheap, or over metered links.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from agent.base.wait import Pacer
from agent.config import Config
from agent.contract import Announce, ClassAnswer, cell_of, leaf_stream
from agent.hub.cells import CellStreams
from agent.hub.registrar.aggregate import AggregateSettings, Observation
from agent.hub.registrar.aggregate_controller import AggregateController
from agent.hub.registrar.fleet_state import FleetState
from agent.hub.registrar.metrics import RegistrarMetrics
from agent.hub.registrar.problems import ActiveProblems
from agent.hub.registrar.records import SLOWEST, ClassRecord, LeafRecord
from agent.jetstream import StreamInfo
from agent.server.setup import hub_sync_seconds

_SCANS_AT_ONCE = 2
"""Aggregates changed at once."""


def settings_of(config: Config) -> AggregateSettings:
    """Return all aggregates' settings."""
    registrar = config.registrar
    return AggregateSettings(
        registrar.max_bytes, registrar.replicas, registrar.max_sources, hub_sync_seconds(config)
    )


class Aggregates:
    """The named aggregates in order of assignment."""

    def __init__(
        self,
        streams: CellStreams,
        names: Sequence[str],
        settings: AggregateSettings,
        classes: Mapping[str, Iterable[str]],
        fleet: FleetState,
        problems: ActiveProblems,
        metrics: RegistrarMetrics,
    ) -> None:
        self._fleet = fleet
        self._max_sources = settings.max_sources
        self._owners = {
            leaf_stream(domain, cls): (domain, cls) for domain in classes for cls in classes[domain]
        }
        turns = asyncio.Semaphore(_SCANS_AT_ONCE)
        self.controllers = {
            name: AggregateController(
                streams.of(name),
                name,
                settings,
                self._may_stay(name),
                fleet,
                turns,
                problems,
                metrics,
            )
            for name in names
        }

    async def begin(self) -> dict[str, Observation]:
        """Create missing ones and look at all. Raises `ApiError` or `UnavailableError`."""
        return {name: await controller.begin({}) for name, controller in self.controllers.items()}

    async def observe(self, name: str) -> Observation:
        """Look at one. Raises as `AggregateController.observe`."""
        return await self.controllers[name].observe()

    async def run(self) -> None:
        """Control all until cancelled."""
        async with asyncio.TaskGroup() as group:
            for controller in self.controllers.values():
                group.create_task(controller.run())

    async def want_all(self) -> None:
        """Want all recorded sources."""
        pacer = Pacer()
        for name, controller in self.controllers.items():
            await pacer.give_way()
            controller.want(self._fleet.sources(name))

    def capped(self, domain: str) -> None:
        """Remove sources of a domain over its limit."""
        self._fleet.capped.add(domain)
        for controller, name in self._sources(domain):
            controller.without([name])

    def allowed(self, domain: str) -> None:
        """Restore a domain's sources."""
        self._fleet.capped.discard(domain)
        for stream, sources in self._fleet.sources_of(domain).items():
            if stream in self.controllers:
                self.controllers[stream].want(sources)

    def rest(self, domain: str, cls: str) -> None:
        """Drop an idle class's source."""
        for controller, name in self._sources(domain):
            if name == leaf_stream(domain, cls):
                self._fleet.resting.add(name)
                controller.unlinked(name)
                controller.without([name])

    def wake(self, domain: str, classes: Iterable[str]) -> None:
        """Restore resting classes' sources."""
        names = {leaf_stream(domain, cls) for cls in classes} & self._fleet.resting
        if not names:
            return
        self._fleet.resting -= names
        for stream, sources in self._fleet.sources_of(domain).items():
            if stream in self.controllers:
                self.controllers[stream].want(sources)

    def seen(self) -> dict[str, Observation]:
        """Return the newest observations."""
        return {
            name: controller.seen
            for name, controller in self.controllers.items()
            if controller.seen is not None
        }

    def place(self, domain: str, classes: Sequence[str], moving: Collection[str] = ()) -> dict[str, str]:
        """Return classes' aggregates: the recorded one, except for `moving` classes. Else that of the leaf's
        cell with a present source, else one of the cell with space.
        """
        leaf = self._fleet.leaves.get(domain)
        records = {} if leaf is None else leaf.classes
        kept = {cls: record.stream for cls, record in records.items() if cls not in moving}
        if kept.keys() >= set(classes):
            return {cls: kept[cls] for cls in classes}
        cell = self._fleet.cell(domain)
        ours = [name for name in self.controllers if cell_of(name) == cell]
        for cls in classes:
            found = None if cls in kept else self._having(leaf_stream(domain, cls))
            if found in ours:
                kept[cls] = found
        return assigned(classes, kept, self._fleet.load(ours), self._max_sources)

    def moved(self, known: LeafRecord, leaf: LeafRecord) -> None:
        """The sources of a leaf's classes that are in another aggregate now go from the one before."""
        for cls, record in leaf.classes.items():
            old = known.classes.get(cls)
            if old is not None and old.stream != record.stream and old.stream in self.controllers:
                self.controllers[old.stream].without([leaf_stream(leaf.domain, cls)])

    def linked(self, domain: str, since: float) -> None:
        """Expect signs of life of a leaf's sources after `since`."""
        for controller, name in self._sources(domain):
            if name not in self._fleet.resting:
                controller.linked(name, since)

    def unlinked(self, domain: str) -> None:
        """Note a lost link."""
        for controller, name in self._sources(domain):
            controller.unlinked(name)

    def troubles(self) -> dict[str, str]:
        """Return why linked sources do not flow, by domain."""
        found: dict[str, str] = {}
        for stream, controller in self.controllers.items():
            for name, words in controller.troubles().items():
                domain, cls = self._owners.get(name, ("", ""))
                leaf = self._fleet.leaves.get(domain)
                if leaf is not None and cls in leaf.classes and leaf.classes[cls].stream == stream:
                    found.setdefault(domain, words)
        return found

    def _sources(self, domain: str) -> Iterable[tuple[AggregateController, str]]:
        leaf = self._fleet.leaves.get(domain)
        for cls, record in leaf.classes.items() if leaf else ():
            if (controller := self.controllers.get(record.stream)) is not None:
                yield controller, leaf_stream(domain, cls)

    def _having(self, name: str) -> str | None:
        for stream, seen in self.seen().items():
            if name in seen.states:
                return stream
        return None

    def _may_stay(self, stream: str) -> Callable[[str], bool]:
        """Return whether unannounced sources may stay: configured, and not recorded elsewhere."""

        def may_stay(name: str) -> bool:
            if name not in self._owners:
                return False
            domain, cls = self._owners[name]
            if domain in self._fleet.revoked:
                return False
            leaf = self._fleet.leaves.get(domain)
            if leaf is None and cell_of(stream) != self._fleet.cell(domain):
                return False
            return leaf is None or cls not in leaf.classes or leaf.classes[cls].stream == stream

        return may_stay


def assigned(
    classes: Sequence[str],
    kept: Mapping[str, str],
    load: Mapping[str, int],
    max_sources: int,
) -> dict[str, str]:
    """Assign classes: `kept` ones stay; others go where they fit by `load`, or to the emptiest."""
    new = [cls for cls in classes if cls not in kept]
    free = {name: max_sources - count for name, count in load.items()}
    placed = {cls: kept[cls] for cls in classes if cls in kept}
    if not new:
        return placed
    home = max(set(placed.values()) & free.keys(), key=lambda name: free[name], default=None)
    if home is None or free[home] < len(new):
        home = max(free, key=lambda name: free[name])
    if free[home] >= len(new):
        return placed | dict.fromkeys(new, home)
    for cls in new:
        emptiest = max(free, key=lambda name: free[name])
        free[emptiest] -= 1
        placed[cls] = emptiest
    return placed


RESTING = "resting"
"""State of a class without source."""

MOST_READ: Final = 20_000
"""Messages that a readded source may scan, when going to rest."""
TOO_FAR: Final = 3 * MOST_READ
"""Messages that end a rest early."""


def awake(announce: Announce, known: LeafRecord | None) -> list[str]:
    """Return classes that need their source, including no longer announced ones with unknown messages."""
    records = known.classes if known is not None else {}
    needed = [
        cls
        for cls, state in announce.classes.items()
        if not state.idle or announce.repairs or cls not in records or records[cls].epoch != state.epoch
    ]
    return needed + [cls for cls in records if cls not in announce.classes]


def may_rest(announce: Announce, cls: str, answer: ClassAnswer) -> bool:
    """Tell whether an idle class is flowing and complete at the hub."""
    state = announce.classes[cls]
    agrees = answer.agreed is not False and answer.certain and answer.fallback is None
    is_whole = answer.state == "flowing" and answer.cursor == state.last
    return state.idle and not announce.repairs and agrees and is_whole


def is_far(announce: Announce, record: ClassRecord, info: StreamInfo, most: int = MOST_READ) -> bool:
    """Tell whether readding scans more than `most` messages; ignored for rarely announcing leaves."""
    newest = 0 if record.held is None else record.held.hub_seq
    is_thin = announce.every is not None and announce.every >= SLOWEST
    return not is_thin and min(info.messages, info.last - newest) > most
