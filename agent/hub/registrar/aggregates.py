"""All aggregates of the hub and their controllers, which of them takes the sources of which leaf, and which
classes of a leaf need no source for now.

An assignment is kept with the leaf's record while the leaf is in one cell: an epoch that changed its
aggregate would have to begin again. The classes of a leaf go together where they fit.

A leaf says which classes are idle. Without a source no heartbeat crosses its link; the first reading has the
leaf announce that the class is not idle, and the source is added again. To add it nats-server reads the
aggregate back to the newest message of that source, and the aggregate takes nothing in meanwhile: 35
microseconds a message, whosever it is (two cores under load 5). So a class rests only while that is
little, but over a link that is paid for by the byte.
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
"""A new source makes the hub's server scan the aggregate, so few aggregates are changed at once."""


def settings_of(config: Config) -> AggregateSettings:
    """The settings of every aggregate by the configuration."""
    registrar = config.registrar
    return AggregateSettings(
        registrar.max_bytes, registrar.replicas, registrar.max_sources, hub_sync_seconds(config)
    )


class Aggregates:
    """The aggregates of these names, in the order in which leaves are given to them."""

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
        """Make those that are missing and look at all; nothing is wanted of them yet. Raises `ApiError` or
        `UnavailableError`."""
        return {name: await controller.begin({}) for name, controller in self.controllers.items()}

    async def observe(self, name: str) -> Observation:
        """Look at one aggregate. Raises as `AggregateController.observe`."""
        return await self.controllers[name].observe()

    async def run(self) -> None:
        """Keep all of them until cancelled."""
        async with asyncio.TaskGroup() as group:
            for controller in self.controllers.values():
                group.create_task(controller.run())

    async def want_all(self) -> None:
        """The sources of all records shall be there."""
        pacer = Pacer()
        for name, controller in self.controllers.items():
            await pacer.give_way()
            controller.want(self._fleet.sources(name))

    def capped(self, domain: str) -> None:
        """A domain has sent too much: its sources go until they are wanted again."""
        self._fleet.capped.add(domain)
        for controller, name in self._sources(domain):
            controller.without([name])

    def allowed(self, domain: str) -> None:
        """A domain may send again."""
        self._fleet.capped.discard(domain)
        for stream, sources in self._fleet.sources_of(domain).items():
            if stream in self.controllers:
                self.controllers[stream].want(sources)

    def rest(self, domain: str, cls: str) -> None:
        """Nothing comes of a class: its source goes, and with it a heartbeat a second over the link."""
        for controller, name in self._sources(domain):
            if name == leaf_stream(domain, cls):
                self._fleet.resting.add(name)
                controller.unlinked(name)
                controller.without([name])

    def wake(self, domain: str, classes: Iterable[str]) -> None:
        """The sources of these classes shall be there, if they rested."""
        names = {leaf_stream(domain, cls) for cls in classes} & self._fleet.resting
        if not names:
            return
        self._fleet.resting -= names
        for stream, sources in self._fleet.sources_of(domain).items():
            if stream in self.controllers:
                self.controllers[stream].want(sources)

    def seen(self) -> dict[str, Observation]:
        """The newest look at each."""
        return {
            name: controller.seen
            for name, controller in self.controllers.items()
            if controller.seen is not None
        }

    def place(self, domain: str, classes: Sequence[str], moving: Collection[str] = ()) -> dict[str, str]:
        """The aggregate of each class of a leaf, `moving` ones apart: that of its record; without one, that
        of its cell which already has its source; otherwise one of its cell with room."""
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
        """The leaf is linked, so its sources have to show a sign of life after `since`."""
        for controller, name in self._sources(domain):
            if name not in self._fleet.resting:
                controller.linked(name, since)

    def unlinked(self, domain: str) -> None:
        """The leaf is not linked any more."""
        for controller, name in self._sources(domain):
            controller.unlinked(name)

    def troubles(self) -> dict[str, str]:
        """Why sources of linked leaves do not flow as far as the hub can tell, by domain."""
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
        """Whether a source of a leaf that has not announced itself may stay in an aggregate: it is a leaf of
        the configuration, and no record names another aggregate."""

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
    """The aggregate of each class of a leaf. `kept` gives those that have one; `load` is how many sources
    every aggregate has, in the order in which they are preferred. Where nothing has room the emptiest takes
    it: a limit that was lowered does not shut a leaf out."""
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
"""The state of a class whose source was dropped because nothing comes of it."""

MOST_READ: Final = 20_000
"""Messages that may be read when the source of a class is added again, by then when it goes to rest."""
TOO_FAR: Final = 3 * MOST_READ
"""More than so many end a rest before its class has a reading."""


def awake(announce: Announce, known: LeafRecord | None) -> list[str]:
    """The classes that need their source. One that is not announced any more is among them: its leaf does
    not say what has come into its stream since, such as the last record of its ledger."""
    records = known.classes if known is not None else {}
    needed = [
        cls
        for cls, state in announce.classes.items()
        if not state.idle or announce.repairs or cls not in records or records[cls].epoch != state.epoch
    ]
    return needed + [cls for cls in records if cls not in announce.classes]


def may_rest(announce: Announce, cls: str, answer: ClassAnswer) -> bool:
    """Whether an idle class may rest: it flows, and both sides agree that the hub holds all of it."""
    state = announce.classes[cls]
    agrees = answer.agreed is not False and answer.certain and answer.fallback is None
    is_whole = answer.state == "flowing" and answer.cursor == state.last
    return state.idle and not announce.repairs and agrees and is_whole


def is_far(announce: Announce, record: ClassRecord, info: StreamInfo, most: int = MOST_READ) -> bool:
    """Whether more messages than `most` are read when the source of a class is added again to an aggregate as
    it is. A leaf that announces itself as rarely as over a `thin` link rests all the same."""
    newest = 0 if record.held is None else record.held.hub_seq
    is_thin = announce.every is not None and announce.every >= SLOWEST
    return not is_thin and min(info.messages, info.last - newest) > most
