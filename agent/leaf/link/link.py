"""The link of a leaf, put together: what watches it, keeps it, shows it and says how long it may last."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from nats.aio.client import Client

from agent.base.clock import ClockReader
from agent.base.metrics import Metrics
from agent.base.wait import loop_time
from agent.config import Config
from agent.contract import Previous, hub_api
from agent.jetstream import JetStream, StreamInfo
from agent.leaf.hub_acks import HubAckWaiters
from agent.leaf.link.act import Trimmer
from agent.leaf.link.announcer import Announcer
from agent.leaf.link.command_mirror.controller import CommandMirror
from agent.leaf.link.command_mirror.local_consumers import ProgramPositions
from agent.leaf.link.controller import LinkController
from agent.leaf.link.disk_quota import DiskQuota
from agent.leaf.link.events import LinkEvents
from agent.leaf.link.guard import EpochReason, NewEpoch
from agent.leaf.link.hub_cursor import HubCursorPoller
from agent.leaf.link.observation import UplinkStatus
from agent.leaf.link.states import ORDINARY, PATIENT
from agent.leaf.link.status import LinkStatus
from agent.leaf.link.time_to_loss import TimeToLoss
from agent.leaf.state import StateFile
from agent.server.health import ServerHealth

Service = Callable[[], Awaitable[Any]]


class LeafLink:
    """The link of all classes of a leaf in one run of its agent, over the current connection to the local
    server. `watch` is told, at each look at a class, what its stream
    holds and up to where the hub is known to hold it; `ledger` gives the newest counts of a class, `renew`
    ends a connection that leads nowhere, `system_seed` is the key of the server's system account, without
    which nothing is paused when the link is lost, `health` what is known of that server, `waits` who waits
    for the hub; `store_lost` is called when the store of a class is not the one it was."""

    def __init__(
        self,
        config: Config,
        run: str,
        state: StateFile,
        metrics: Metrics,
        trimmer: Trimmer,
        *,
        watch: Callable[[str, StreamInfo, int], None],
        ledger: Callable[[str], Previous],
        renew: Callable[[str], None],
        system_seed: Path | None,
        health: ServerHealth,
        waits: HubAckWaiters,
        store_lost: Callable[[str], None],
    ) -> None:
        self._domain, self._run, self._state, self._metrics = config.domain, run, state, metrics
        self._ledger, self._clock, self._health = ledger, ClockReader(), health
        self._tell = watch
        self._every = config.link.announce_seconds
        classes = {cls.name: cls for cls in config.class_}
        embedded = config.nats.server == "embedded"
        self.horizon = TimeToLoss(
            {cls.name: cls.max_bytes for cls in config.class_},
            config.nats.max_file_store if embedded else None,
        )
        self.quotas = DiskQuota(classes, self.horizon.held, lambda: health.room)
        self.board = LinkStatus(config.domain, classes, metrics, self._watch, self._short_of_room)
        self._events: LinkEvents | None = None
        if system_seed is not None:
            url = f"nats://{config.nats.listen}"
            self._events = LinkEvents(url, system_seed, config.domain, self._changed)
        self.keeper = LinkController(
            domain=config.domain,
            classes=classes,
            state=state,
            metrics=metrics,
            board=self.board,
            trimmer=trimmer,
            link_seen=self._seen,
            stream_gone=renew,
            trouble=lambda: health.sentence,
            new_epoch=self._began,
            announce_seconds=config.link.announce_seconds,
        )
        self._waits, self._store_lost = waits, store_lost
        self._cursor = HubCursorPoller(
            config.domain, run, state, waits, self.keeper.agreed_epoch, self.keeper.announce_now
        )
        programs = ProgramPositions(config.state_dir / "command-places.json", config.domain)
        programs.load()
        self._commands = CommandMirror(
            config.domain,
            hub_api(tenant=config.link.tenant),
            state,
            programs,
            metrics,
            self.keeper.announce_now,
        )

    def services(self) -> dict[str, Service]:
        """What runs beside the publish path, by name."""
        services: dict[str, Service] = {
            "link": self.keeper.run,
            "cursor": self._cursor.run,
            "commands": self._commands.run,
        }
        if self._events is not None:
            services["events"] = self._events.run
        return services

    @contextlib.contextmanager
    def connected(self, nc: Client, js: JetStream) -> Iterator[None]:
        """Work over this connection, at once, as long as the scope lasts."""
        announcer = Announcer(
            nc,
            js,
            domain=self._domain,
            run=self._run,
            versions={"agent": version("petiole")},
            every=self._every,
            state=self._state,
            ledger=self._ledger,
            horizon=self.horizon.seconds.__getitem__,
            clock=lambda: str(self._clock.read()),
            commands=self._commands,
        )
        with (
            self.keeper.connected(js, announcer),
            self._cursor.connected(nc, js),
            self._commands.connected(nc, js),
        ):
            yield

    def show_unreachable(self) -> None:
        """Show that the local server does not answer."""
        self.keeper.show_unreachable()
        self._commands.show_unreachable()

    def epoch_begun(self, cls: str, epoch: NewEpoch) -> None:
        """The local guard has begun a new epoch."""
        self._metrics.epochs.labels(cls, epoch.reason.value).inc()
        self.keeper.epoch_begun(cls, epoch.reason)

    def status(self) -> Mapping[str, Any]:
        """The link as one row of `/status`."""
        board = self.board
        return {
            "linked": self.keeper.answered,
            "state": board.state,
            "sentence": board.sentence,
            "attention": board.state not in ORDINARY | PATIENT,
        }

    def class_status(self, cls: str) -> dict[str, Any]:
        """The link of one class as a row of `/status`."""
        one = self.board.classes[cls]
        return {
            "epoch": self._state.current.epochs.get(cls),
            "state": one.state,
            "sentence": one.sentence,
            "last": one.last,
            "confirmed": one.confirmed,
            "hub_stream": one.hub_stream,
            "seconds_to_loss": self.horizon.seconds[cls],
            "held_back": self.quotas.refusal(cls),
        }

    def declared_status(self) -> list[Mapping[str, Any]]:
        """Every mirror and source beside the telemetry, a row each."""
        return [self._commands.status()]

    def _seen(self) -> UplinkStatus | None:
        seen = self._events.seen if self._events is not None else None
        if seen is None or seen.up or not self._health.closed:
            return seen
        return dataclasses.replace(seen, closed=self._health.closed)

    def _began(self, cls: str, why: EpochReason) -> None:
        self._waits.reached(cls, 0)
        if why in (EpochReason.RECREATED, EpochReason.PUT_BACK, EpochReason.DIFFERENT):
            self._store_lost(cls)

    def _changed(self) -> None:
        self.keeper.look()
        self.keeper.announce_now()

    def _watch(self, cls: str, info: StreamInfo, confirmed: int) -> None:
        self._tell(cls, info, confirmed)
        self._waits.reached(cls, confirmed)
        left = self._health.room
        free = None if left is None else max(0, left.free - left.reserve)
        self.horizon.observe(cls, info, confirmed, loop_time(), free)

    def _short_of_room(self) -> bool:
        room = self._health.room
        return self.quotas.short or (room is not None and not room.enough)
